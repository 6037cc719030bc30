"""The rules of a group and the state of a partition: decide, apply, deliver. Pure, without Kafka."""
