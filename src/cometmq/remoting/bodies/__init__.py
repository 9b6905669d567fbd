"""The bodies of commands as frozen dataclasses, one module a subject; ``from_json`` and ``to_json`` on each.

====================  =============================================================================================
module                bodies
====================  =============================================================================================
``heartbeat``         heartbeats and subscriptions
``connections``       connected clients
``locks``             locks of queues
``routes``            routes, clusters, members of a broker
``registration``      a broker's registration, plain and compressed
``config_tables``     topics, groups, offsets, key-value tables
``stats``             statistics of topics, groups and brokers
``running_info``      what a consumer says about itself, and one message consumed directly
``offset_changes``    resets of offsets and their answers
``assignments``       queues assigned by the broker, modes of groups
``acks``              acknowledgements in batches
``queries``           subscriptions and consume queues
====================  =============================================================================================
"""
