"""Where data sets come from: folders, tables, zips, benchmarks in CoOp's layout."""
