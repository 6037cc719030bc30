"""The records on the wire: Avro definitions, values, codecs, framing, errors.

Belongs here: the meaning of bytes, for every part of the project and every released version. Pure, except
`uow.schemas.registry`, which may ask a schema registry. Does not belong here: topics, policies, decisions; this package
imports no other package of the project.
"""
