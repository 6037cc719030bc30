import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends and reads units of work with Java's own Kafka client.
 *
 * <pre>
 * java Units send BOOTSTRAP DESTINATION ID ITEM...     a unit, in one transaction
 * java Units read BOOTSTRAP DESTINATION GROUP COUNT    at least so many units, a line of JSON each
 * </pre>
 */
public final class Units {

    static void send(String bootstrap, String destination, String id, List<String> items) throws Exception {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap,
                // stable: a successor of that name ends at once what this one leaves open
                "transactional.id", "example-java-producer",
                "key.serializer", ByteArraySerializer.class, // the raw bytes of the id, and nothing around them
                "value.serializer", ByteArraySerializer.class);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            try {
                for (Wire.Component component : Wire.components(destination, id, items)) {
                    ProducerRecord<byte[], byte[]> record =
                            new ProducerRecord<>(component.topic(), utf8(component.key()), utf8(component.value()));
                    for (Wire.Header header : component.headers()) {
                        record.headers().add(header.name(), utf8(header.value()));
                    }
                    sent.add(producer.send(record)); // the default partitioner is murmur2
                }
                producer.commitTransaction();
            } catch (RuntimeException error) {
                producer.abortTransaction();
                throw error;
            }
            List<String> partitions = new ArrayList<>();
            for (Future<RecordMetadata> each : sent) {
                partitions.add(Integer.toString(each.get().partition()));
            }
            Wire.OUT.printf("{\"id\": %s, \"partitions\": [%s]}%n", Wire.quoted(id), String.join(", ", partitions));
        }
    }

    static void read(String bootstrap, String destination, String group, int count) {
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", group,
                "isolation.level", "read_committed", // not the default
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false",
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(destination + ".units"));
            for (int left = count; left > 0; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    if (isUnit(record)) { // plain records pass through the same topic
                        Wire.OUT.println(Wire.json(Wire.unit(record.value())));
                        left--;
                    }
                }
                consumer.commitSync(); // once the units are dealt with, not before
            }
        }
    }

    static boolean isUnit(ConsumerRecord<byte[], byte[]> record) {
        Header kind = record.headers().lastHeader("uow-kind");
        return kind != null && Arrays.equals(kind.value(), utf8("unit")) && record.headers().lastHeader("uow-seq") == null;
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    public static void main(String[] given) throws Exception {
        List<String> arguments = Arrays.asList(given);
        switch (given.length > 4 ? arguments.get(0) : "") {
            case "send" -> send(arguments.get(1), arguments.get(2), arguments.get(3), arguments.subList(4, given.length));
            case "read" -> read(arguments.get(1), arguments.get(2), arguments.get(3), Integer.parseInt(arguments.get(4)));
            default -> {
                System.err.println("usage: Units send BOOTSTRAP DESTINATION ID ITEM... | read BOOTSTRAP DESTINATION GROUP COUNT");
                System.exit(2);
            }
        }
    }
}
