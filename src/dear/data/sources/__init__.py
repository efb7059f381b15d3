"""Sources of data sets: folders, tables, zips, benchmarks in CoOp's layout."""
