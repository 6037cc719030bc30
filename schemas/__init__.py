"""The words on the wire: Avro definitions, records, codecs, framing, errors.

Belongs here: what bytes mean, for every part of uow and in every version ever released. Pure but for
`schemas.registry`, which may ask a schema registry. Does not belong here: topics, policies, decisions; this package
knows no other of ours.
"""
