package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Transactions with the official client. A body's first letter is the outcome: c commits and r rolls back at once; C and
 * R do so when a check asks.
 */
final class Transactions {
    private Transactions() {
    }

    private static LocalTransactionState outcomeOf(Message message, boolean checked) {
        char letter = (char) message.getBody()[0];
        if (Character.isUpperCase(letter) && !checked) {
            return LocalTransactionState.UNKNOW;
        }
        return Character.toLowerCase(letter) == 'c'
            ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    /** Sends each of {@code bodies} in a transaction, a row for each; then answers checks until {@code checks} came. */
    static void transact(JSONObject request, Peer.Rows rows) throws Exception {
        CountDownLatch checks = new CountDownLatch(request.getIntValue("checks"));
        TransactionMQProducer producer =
            Clients.configure(new TransactionMQProducer(request.getString("group")), request);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return outcomeOf(message, false);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                checks.countDown();
                return outcomeOf(message, true);
            }
        });
        producer.start();
        try {
            for (Object body : request.getJSONArray("bodies")) {
                Message message =
                    new Message(request.getString("topic"), String.valueOf(body).getBytes(StandardCharsets.UTF_8));
                SendResult result = producer.sendMessageInTransaction(message, null);
                rows.add(Map.of("body", body, "status", result.getSendStatus().name()));
            }
            // A broker knows the group by its heartbeat, which goes to the brokers of routes in use: of what was sent to.
            producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
            if (!checks.await(request.getLongValue("timeout_ms"), TimeUnit.MILLISECONDS)) {
                throw new IllegalStateException(checks.getCount() + " checks did not come");
            }
            // Answers to checks are sent one way, after the listener has returned.
            TimeUnit.MILLISECONDS.sleep(request.getLongValue("linger_ms"));
        } finally {
            Clients.retire(producer::shutdown);
        }
    }
}
