"""`uow demo`: the Megazon story on a real broker (contract section 9, W-128 to W-132).

| Module | What it is |
| --- | --- |
| `play` | the story, act by act |
| `place` | the folder, the configuration, and every process that the demo starts |
| `mischief` | traffic that is no order, or no good one, and what must become of it |
| `observer` | a reader that shares no code with the worker: what the topics say |
| `report` | what came out, and whether the counts agree |

Checkout, suppliers and invoicing are programs of their own, `examples/megazon/`.
"""
