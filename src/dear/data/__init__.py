"""Items, splits, data sets and the procedural Attribute World."""
