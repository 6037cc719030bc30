"""Rules: expressions, sets of rules, their store, and routing by them. No Kafka; `uow.topics.rules` has the values."""
