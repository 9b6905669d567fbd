# Tests against a real Apache RocketMQ: included by the main Makefile. Where Java 17 or Maven is missing they are skipped,
# with the reason. The jars (about 85 MB a version) come through Maven into its own repository and into build/java.
#
# RELEASE=5.5.0 takes that release for the servers and the Java client, in place of 5.3.3, and the tests that need no
# other one beside it; a release that Maven does not have is a skip.

RELEASE ?=
export CMQ_JAVA_RELEASE := $(RELEASE)

.PHONY: test-java
test-java: $(BUILT) ## against a real RocketMQ broker and client (needs Java 17 and Maven): all of it (RELEASE=5.5.0)
	@CMQ_JAVA=full $(BIN)/python -m pytest tests/interop $(PYTEST_ARGS)

# The part of it in which clients and servers of either kind talk to each other.
TEST_INTEROP := tests/interop/test_clients_*.py tests/interop/test_python_client_*.py tests/interop/test_pop_*.py tests/interop/test_mqadmin.py tests/interop/test_namesrv_java.py tests/interop/test_admin_java.py tests/interop/test_spark_java.py

.PHONY: test-interop
test-interop: $(BUILT) ## Java clients and mqadmin on our servers, our client on upstream's, and both kinds mixed
	@CMQ_JAVA=full $(BIN)/python -m pytest $(wildcard $(TEST_INTEROP)) $(PYTEST_ARGS)

.PHONY: test-java-short
test-java-short: $(BUILT) ## the same, in some minutes: one pass through each direction, none that looks at the clock
	@CMQ_JAVA=short $(BIN)/python -m pytest tests/interop $(PYTEST_ARGS)
