"""The name server: which brokers live, and which topics they have.

=============  ====================================================================================================
module         holds
=============  ====================================================================================================
``routes``     the table of brokers and topics, without sockets and clock
``kv_config``  ``kvConfig.json``
``settings``   the settings, typed
``handlers``   what is answered to each request
``server``     all of it behind a socket
=============  ====================================================================================================
"""
