"""Units of work for Apache Kafka: what users import and type."""
