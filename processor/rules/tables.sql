CREATE TABLE uow_rule_head (id SMALLINT PRIMARY KEY CHECK (id = 1), version BIGINT NOT NULL);  -- one row; updated first by every change, so versions commit in order
CREATE TABLE uow_rule_change (version BIGINT PRIMARY KEY, author VARCHAR(64) NOT NULL, why VARCHAR(512) NOT NULL, changed_at_ms BIGINT NOT NULL, reverts_to BIGINT NULL);
CREATE TABLE uow_rule (                                        -- nothing in this or the following tables is ever updated in place
  rule_id       VARCHAR(64) NOT NULL, version BIGINT NOT NULL REFERENCES uow_rule_change (version),   -- id: letters, digits, dot, dash, underscore
  enabled       BOOLEAN NOT NULL DEFAULT TRUE, priority INTEGER NOT NULL DEFAULT 100,                 -- lower is asked first
  destination   VARCHAR(128) NOT NULL, accept VARCHAR(512) NULL, transform VARCHAR(128) NULL,         -- D; expression, NULL accepts all; registered name
  group_key     VARCHAR(512) NOT NULL DEFAULT 'header:uow-destination',
  key_case      VARCHAR(16) NOT NULL DEFAULT 'exact' CHECK (key_case IN ('exact', 'casefold')), default_group VARCHAR(16) NOT NULL DEFAULT 'per_name' CHECK (default_group IN ('shared', 'per_name')),
  on_no_key     VARCHAR(16) NOT NULL DEFAULT 'by_key'     CHECK (on_no_key IN ('by_key', 'default', 'reject', 'unnamed', 'pass_through')), -- by_key: default where the key is a header, reject where it comes from content
  delay_item    VARCHAR(256) NULL,                                                                    -- expression; its text selects a row of uow_rule_delay
  cardinality   VARCHAR(16) NOT NULL DEFAULT 'one' CHECK (cardinality IN ('one', 'many')), sequence VARCHAR(16) NOT NULL DEFAULT 'assigned' CHECK (sequence IN ('given', 'assigned')),
  order_by      VARCHAR(128) NOT NULL DEFAULT 'arrival',                                              -- sequence | arrival | source | field:PATH
  deliver_order VARCHAR(16) NOT NULL DEFAULT 'completion' CHECK (deliver_order IN ('completion', 'first_arrival')),
  release       VARCHAR(16) NOT NULL DEFAULT 'auto'       CHECK (release IN ('auto', 'hold_all', 'hold_first')), release_every_ms BIGINT NULL CHECK (release_every_ms >= 1000),
  max_waiting   INTEGER NULL CHECK (max_waiting >= 1), waiting_age_ms BIGINT NULL CHECK (waiting_age_ms >= 1),
  at_waiting_limit VARCHAR(16) NOT NULL DEFAULT 'deliver' CHECK (at_waiting_limit IN ('deliver', 'redirect')),
  late_policy   VARCHAR(16) NOT NULL DEFAULT 'reject' CHECK (late_policy IN ('reject', 'reopen')), on_rule_change VARCHAR(16) NOT NULL DEFAULT 'snapshot' CHECK (on_rule_change IN ('snapshot', 'live')),
  name_template VARCHAR(256) NULL, max_open_groups INTEGER NULL CHECK (max_open_groups >= 1),
  at_max_open_groups VARCHAR(16) NOT NULL DEFAULT 'reject' CHECK (at_max_open_groups IN ('reject', 'close_oldest')),
  PRIMARY KEY (rule_id, version)
);
CREATE TABLE uow_rule_row (                                    -- one routing name of a rule; '*' is the default row
  rule_id       VARCHAR(64) NOT NULL, routing_name VARCHAR(128) NOT NULL, version BIGINT NOT NULL REFERENCES uow_rule_change (version),
  enabled       BOOLEAN NOT NULL DEFAULT TRUE, valid_from_ms BIGINT NULL, valid_to_ms BIGINT NULL,
  target_topic  VARCHAR(249) NULL,                                                                    -- NULL: D.units
  complete_count INTEGER NULL CHECK (complete_count >= 1), complete_bytes BIGINT NULL CHECK (complete_bytes >= 1),
  complete_when VARCHAR(512) NULL, give_up_when VARCHAR(512) NULL,                                    -- further conditions
  min_count     INTEGER NOT NULL DEFAULT 1 CHECK (min_count >= 1),
  below_min     VARCHAR(16) NOT NULL DEFAULT 'redirect'   CHECK (below_min IN ('redirect', 'extend')),
  age_ms        BIGINT NULL CHECK (age_ms >= 1), idle_ms BIGINT NULL CHECK (idle_ms >= 1),
  age_from      VARCHAR(128) NOT NULL DEFAULT 'arrival',                                              -- arrival | event:PATH | manifest
  on_give_up    VARCHAR(16) NOT NULL DEFAULT 'deliver_partial' CHECK (on_give_up IN ('deliver_partial', 'redirect', 'log', 'discard')),
  late_join     VARCHAR(16) NOT NULL DEFAULT 'strict'     CHECK (late_join IN ('strict', 'lenient')),
  shape         VARCHAR(16) NULL CHECK (shape IN ('envelope', 'consecutive', 'reference')), value_format VARCHAR(16) NULL CHECK (value_format IN ('avro', 'json', 'xml')),
  PRIMARY KEY (rule_id, routing_name, version)
);
CREATE TABLE uow_rule_delay (                                  -- how long one item may wait; NULL removes its limit
  rule_id VARCHAR(64) NOT NULL, routing_name VARCHAR(128) NOT NULL, item VARCHAR(128) NOT NULL, delay_ms BIGINT NULL CHECK (delay_ms >= 0),
  version BIGINT NOT NULL REFERENCES uow_rule_change (version), PRIMARY KEY (rule_id, routing_name, item, version)
);
CREATE TABLE uow_rule_source (                                 -- one source of a collection
  rule_id VARCHAR(64) NOT NULL, source_name VARCHAR(128) NOT NULL, version BIGINT NOT NULL REFERENCES uow_rule_change (version), enabled BOOLEAN NOT NULL DEFAULT TRUE,
  quantity INTEGER NULL CHECK (quantity >= 0), wait_ms BIGINT NULL CHECK (wait_ms >= 1), wait_from VARCHAR(16) NOT NULL DEFAULT 'source' CHECK (wait_from IN ('source', 'group')),
  correlation_path VARCHAR(256) NULL, correlation_pattern VARCHAR(256) NULL, PRIMARY KEY (rule_id, source_name, version)
);
CREATE TABLE uow_rule_parameter (                              -- reply_hold_ms (60000), delivery_attempts (5), stranded_after_ms, audit_every_ms
  name VARCHAR(64) NOT NULL, version BIGINT NOT NULL REFERENCES uow_rule_change (version), value VARCHAR(256) NOT NULL, PRIMARY KEY (name, version)
);
