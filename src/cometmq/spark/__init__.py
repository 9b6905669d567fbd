"""CometMQ as a source and sink of Spark: ``spark.read.format("cometmq")``.

The way of a query::

    pyspark_cometmq.DefaultSource = default_source.CometMQSource      found by Spark by the package's name
      options       texts -> frozen dataclasses                       unknown ones are refused
      catalog       topics, ends of queues, sizes of messages         on the driver; wire_catalog: of brokers
      ranges, filters, admission      what is read                    on the driver, once per query or micro-batch
      planning      ranges -> tasks, by bytes                         on the driver
      fetch         ranges -> Arrow batches                           on the executors; wire_rows: from brokers
      source, stream                  what Spark calls for it

and of a write::

      writer        what Spark calls
      staging       rows -> checked, one synced file per task         on the executors
      journal       one piece of hand-off work names the files        on the driver; the store's writer appends them

or, through brokers::

      wire_writer   what Spark calls
      sent_rows     rows -> messages under ids that stay, sent        on the executors

``wire`` is the way to brokers.

``pyspark`` is imported by ``default_source``, ``source``, ``stream``, ``writer``, ``wire_writer`` and, in tasks, by
``running`` only; the rest is plain Python.
"""

from cometmq.spark.jvm import jars, session

__all__ = ["jars", "session"]
