package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueueAssignment;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The client's own requests of POP, one by one: what upstream's proxy and its push consumer are made of. Not in 4.9. */
final class Popper {
    private static final long TIMEOUT_MS = 10_000;

    private Popper() {
    }

    /** One answer of a broker's, waited for. */
    private interface Asking<T> {
        void begin(MQClientAPIImpl client, CompletableFuture<T> answer) throws Exception;
    }

    private static <T> T ask(JSONObject request, long timeoutMs, Asking<T> asking) throws Exception {
        DefaultMQAdminExt admin = Clients.admin(request);
        try {
            CompletableFuture<T> answer = new CompletableFuture<>();
            asking.begin(admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl(), answer);
            return answer.get(timeoutMs, TimeUnit.MILLISECONDS);
        } finally {
            Clients.retire(admin::shutdown);
        }
    }

    private static AckCallback into(CompletableFuture<AckResult> answer) {
        return new AckCallback() {
            @Override
            public void onSuccess(AckResult result) {
                answer.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                answer.completeExceptionally(failure);
            }
        };
    }

    /** Pops once: a row with status and rest, then one of each message, its handle among its properties. */
    static void pop(JSONObject request, Peer.Rows rows) throws Exception {
        long pollMs = request.getLongValue("poll_ms", 0);
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setTopic(request.getString("topic"));
        header.setConsumerGroup(request.getString("group"));
        header.setQueueId(request.getIntValue("queue", -1));
        header.setMaxMsgNums(request.getIntValue("max", 32));
        header.setInvisibleTime(request.getLongValue("invisible_ms", 60_000L));
        header.setPollTime(pollMs);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(request.getBooleanValue("order", false));
        PopResult result = ask(request, pollMs + TIMEOUT_MS, (client, answer) ->
            client.popMessageAsync(request.getString("broker"), request.getString("address"), header, pollMs + TIMEOUT_MS, new PopCallback() {
                @Override
                public void onSuccess(PopResult popped) {
                    answer.complete(popped);
                }

                @Override
                public void onException(Throwable failure) {
                    answer.completeExceptionally(failure);
                }
            }));
        rows.add(Map.of("status", result.getPopStatus().name(), "rest", result.getRestNum()));
        List<MessageExt> found = result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList();
        for (MessageExt message : found) {
            Map<String, Object> row = MessageRow.of(message, false);
            row.put("handle", message.getProperty(MessageConst.PROPERTY_POP_CK));
            rows.add(row);
        }
    }

    /** Acknowledges handles one by one, or all in one request, as {@code batch} says. */
    static void ack(JSONObject request, Peer.Rows rows) throws Exception {
        String topic = request.getString("topic");
        String group = request.getString("group");
        List<String> handles = request.getJSONArray("handles").toJavaList(String.class);
        if (request.getBooleanValue("batch", false)) {
            AckResult result = ask(request, TIMEOUT_MS, (client, answer) ->
                client.batchAckMessageAsync(request.getString("address"), TIMEOUT_MS, into(answer), topic, group, handles));
            rows.add(Map.of("status", result.getStatus().name()));
            return;
        }
        for (String handle : handles) {
            String[] parts = ExtraInfoUtil.split(handle);
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setTopic(ExtraInfoUtil.getRealTopic(parts, topic, group));
            header.setConsumerGroup(group);
            header.setQueueId(ExtraInfoUtil.getQueueId(parts));
            header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
            header.setExtraInfo(handle);
            header.setBrokerName(ExtraInfoUtil.getBrokerName(parts));
            AckResult result = ask(request, TIMEOUT_MS, (client, answer) ->
                client.ackMessageAsync(request.getString("address"), TIMEOUT_MS, into(answer), header));
            rows.add(Map.of("status", result.getStatus().name()));
        }
    }

    /** Gives a message another invisible time; the row has its new handle. */
    static void change(JSONObject request, Peer.Rows rows) throws Exception {
        String group = request.getString("group");
        String handle = request.getString("handle");
        String[] parts = ExtraInfoUtil.split(handle);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, request.getString("topic"), group));
        header.setConsumerGroup(group);
        header.setQueueId(ExtraInfoUtil.getQueueId(parts));
        header.setOffset(ExtraInfoUtil.getQueueOffset(parts));
        header.setExtraInfo(handle);
        header.setInvisibleTime(request.getLongValue("invisible_ms"));
        header.setBrokerName(ExtraInfoUtil.getBrokerName(parts));
        AckResult result = ask(request, TIMEOUT_MS, (client, answer) -> client.changeInvisibleTimeAsync(
            ExtraInfoUtil.getBrokerName(parts), request.getString("address"), header, TIMEOUT_MS, into(answer)));
        rows.add(Map.of("status", result.getStatus().name(), "handle", String.valueOf(result.getExtraInfo())));
    }

    /** Asks which queues a member of a group is to have: a row each; none at all where the broker leaves it as it is. */
    static void assignment(JSONObject request, Peer.Rows rows) throws Exception {
        Set<MessageQueueAssignment> found = ask(request, TIMEOUT_MS, (client, answer) -> answer.complete(client.queryAssignment(
            request.getString("address"), request.getString("topic"), request.getString("group"), request.getString("client_id"),
            request.getString("strategy"), MessageModel.CLUSTERING, TIMEOUT_MS)));
        Collection<MessageQueueAssignment> assignments = found == null ? List.of() : found;
        for (MessageQueueAssignment assignment : assignments) {
            rows.add(Map.of(
                "broker", assignment.getMessageQueue().getBrokerName(),
                "queue", assignment.getMessageQueue().getQueueId(),
                "mode", assignment.getMode().name()));
        }
    }
}
