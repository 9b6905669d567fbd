package io.cometmq.interop;

import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** The strategies of upstream by which members of a group share its queues out, as a request describes them. */
final class Strategies {
    private static final String ROOM_END = "@";

    private Strategies() {
    }

    /** {@code {"name": …}}; with {@code queues} ("topic:broker:id") for CONFIG, with {@code rooms} for MACHINE_ROOM. */
    static AllocateMessageQueueStrategy of(JSONObject spec) {
        return switch (spec.getString("name")) {
            case "AVG" -> new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE" -> new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH" -> new AllocateMessageQueueConsistentHash();
            case "CONFIG" -> byConfig(spec.getJSONArray("queues").toJavaList(String.class));
            case "MACHINE_ROOM" -> byMachineRoom(spec.getJSONArray("rooms").toJavaList(String.class));
            case "MACHINE_ROOM_NEARBY" -> new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms());
            default -> throw new IllegalArgumentException("unknown strategy " + spec);
        };
    }

    private static AllocateMessageQueueStrategy byConfig(List<String> texts) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String text : texts) {
            String[] parts = text.split(":");
            queues.add(new MessageQueue(parts[0], parts[1], Integer.parseInt(parts[2])));
        }
        AllocateMessageQueueByConfig strategy = new AllocateMessageQueueByConfig();
        strategy.setMessageQueueList(queues);
        return strategy;
    }

    private static AllocateMessageQueueStrategy byMachineRoom(List<String> rooms) {
        AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
        strategy.setConsumeridcs(new HashSet<>(rooms));
        return strategy;
    }

    /** Brokers are named {@code room@name}, and members' instances {@code room@name}, which makes {@code ip@room@name}. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split(ROOM_END)[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split(ROOM_END)[1];
        }
    }
}
