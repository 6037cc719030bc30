"""`uow prove`: units of work under faults on a real broker, judged by code that shares nothing with the worker.

| Module | What it is |
| --- | --- |
| `ground_truth`, `load` | the records that were sent, and a seeded load that sends them |
| `faults` | the kinds of fault, and how a seed draws them |
| `supervised_worker`, `cluster_faults` | causing faults: of one worker; of all workers or their broker |
| `round`, `proof` | one round from creating topics to judgement; several rounds, until the time is over |
| `judge`, `checker` | the required results, and the comparison with the actual ones |
| `reading`, `seen_records`, `definitions` | reading topics as any consumer could, with the published Avro definitions |
| `timeline`, `proof_report`, `page` | events with their times, and reports: text, JSON, HTML |
| `frames` | a proxy between a client and its broker that understands Kafka's frames |

If you doubt a proof, read `judge`, `checker` and `reading`: an import contract ensures that they use no code of the worker.
"""
