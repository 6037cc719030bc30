"""`uow prove`: units of work under faults on a real broker, judged by code that shares nothing with the worker.

| Module | What it is |
| --- | --- |
| `truth`, `load` | what was sent, and a seeded load that sends it |
| `faults` | the kinds of fault, and how a seed draws them |
| `slot`, `weather` | doing it: to one worker, to all of them, to their broker |
| `round`, `proof` | one round from topics to judgement; several, until time is up |
| `judge`, `checker` | what must come out, and whether it did |
| `reading`, `records`, `definitions` | topics as an outsider reads them, with the published Avro definitions |
| `events`, `report`, `page` | when it happened, and how it is told: text, JSON, HTML |
| `frames` | a proxy between a client and its broker that understands Kafka's frames |

Who doubts should read `judge`, `checker` and `reading`: an import contract keeps the worker's rooms out of them.
"""
