package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Starts client objects that share nothing with the ones before them. */
final class Clients {
    private Clients() {
    }

    /** Points a client at the request's name server; the fresh instance name gives it connections and routes of its own. */
    static <T extends ClientConfig> T configure(T client, JSONObject request) {
        client.setNamesrvAddr(request.getString("namesrv"));
        client.setInstanceName(UUID.randomUUID().toString());
        client.setVipChannelEnabled(false);
        return client;
    }

    /**
     * Ends a client that has nothing left to say, without waiting for it.
     *
     * <p>Upstream's remoting client often needs three seconds for its own thread to notice the end.
     */
    static void retire(Runnable shutdown) {
        Thread thread = new Thread(shutdown, "retire");
        thread.setDaemon(true);
        thread.start();
    }

    /** The old pull consumer: it asks exactly for the offsets that we name, and nothing happens behind our back. */
    @SuppressWarnings("deprecation")
    static DefaultMQPullConsumer pullConsumer(JSONObject request) throws Exception {
        String group = request.getString("group") == null ? "interop_pull" : request.getString("group");
        DefaultMQPullConsumer consumer = configure(new DefaultMQPullConsumer(group), request);
        consumer.start();
        return consumer;
    }

    static DefaultMQAdminExt admin(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = configure(new DefaultMQAdminExt(10_000L), request);
        admin.setAdminExtGroup("interop_admin_" + UUID.randomUUID());
        admin.start();
        return admin;
    }

    /** The topic's queues in order of their ids. */
    @SuppressWarnings("deprecation")
    static List<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws Exception {
        Set<MessageQueue> found = consumer.fetchSubscribeMessageQueues(topic);
        List<MessageQueue> queues = new ArrayList<>(found);
        queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
        return queues;
    }
}
