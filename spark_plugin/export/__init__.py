"""Export of topics to Delta Lake, Iceberg and plain Parquet, exactly once."""
