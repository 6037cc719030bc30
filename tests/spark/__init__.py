"""A package, so that what is shared in it, the Spark session, ends with its last test."""
