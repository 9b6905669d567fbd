package io.cometmq.interop;

import java.security.MessageDigest;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** A message as the client sees it, as one JSON object. */
final class MessageRow {
    private MessageRow() {
    }

    static Map<String, Object> of(MessageExt message, boolean withBody) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", message.getTopic());
        row.put("queue", message.getQueueId());
        row.put("queue_offset", message.getQueueOffset());
        row.put("physical_offset", message.getCommitLogOffset());
        row.put("size", message.getStoreSize());
        row.put("flag", message.getFlag());
        row.put("sys_flag", message.getSysFlag());
        row.put("body_crc", message.getBodyCRC());
        row.put("born_timestamp_ms", message.getBornTimestamp());
        row.put("store_timestamp_ms", message.getStoreTimestamp());
        row.put("born_host", String.valueOf(message.getBornHost()));
        row.put("store_host", String.valueOf(message.getStoreHost()));
        row.put("reconsume_times", message.getReconsumeTimes());
        // Of a MessageClientExt, getMsgId() is the unique id where there is one.
        row.put("message_id", message.getMsgId());
        row.put("offset_message_id", message instanceof MessageClientExt client ? client.getOffsetMsgId() : message.getMsgId());
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("properties", new TreeMap<>(message.getProperties()));
        row.put("body_sha256", sha256(message.getBody()));
        row.put("body_bytes", message.getBody().length);
        if (withBody) {
            row.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        }
        return row;
    }

    static String sha256(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }
}
