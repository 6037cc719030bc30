"""`uow demo`: the Megazon story on a real broker (P-20, W-128 to W-132), and that of low stock (aggregation, B-08).

| Module | What it is |
| --- | --- |
| `story` | the story, act by act |
| `environment` | the folder, the configuration, and every process that the demo starts |
| `bad_traffic` | records that are not orders, or not good ones, and the required result of each |
| `observer` | a consumer of all topics that shares no code with the worker |
| `story_report` | the results, and checks that the counts agree |
| `stock_story`, `stock_observer`, `stock_report` | the same for low stock |

Checkout, suppliers and invoicing are programs of their own, `examples/megazon/`, and so is the warehouse, `examples/low_stock/`.
"""
