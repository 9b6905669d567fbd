"""CometMQ as a source and sink of Spark: ``spark.read.format("cometmq")``.

The way of a query::

    pyspark_cometmq.DefaultSource = default_source.CometMQSource      found by Spark by the package's name
      options       texts -> frozen dataclasses                       unknown ones are refused
      catalog       topics, ends of queues, sizes of messages         on the driver; wire_catalog: of brokers
      ranges, filters, admission      what is read                    on the driver, once per query or micro-batch
      planning      ranges -> tasks, by bytes                         on the driver
      fetch         ranges -> Arrow batches                           on the executors; wire_rows: from brokers
      source, stream                  what Spark calls for it

``wire`` is the way to brokers. And of a write::

      writer        what Spark calls
      staging       rows -> checked, one synced file per task         on the executors
      journal       one piece of hand-off work names the files        on the driver; the store's writer appends them

``pyspark`` is imported by ``default_source``, ``source``, ``stream`` and ``writer`` only; the rest is plain Python.
"""
