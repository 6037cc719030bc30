import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.UUID;

/**
 * The wire format of units of work in plain Java: the records of a unit, the partition of a key, and a unit in Avro.
 * Nothing but the standard library; docs/wire-format.md defines all of it.
 *
 * <pre>
 * java Wire records DESTINATION PARTITIONS ID ITEM...   the components of a unit, a line of JSON each
 * java Wire partitions PARTITIONS                       a partition for each key on standard input, in hexadecimal
 * java Wire unit                                        values of D.units on standard input, in hexadecimal, as JSON
 * </pre>
 */
public final class Wire {

    public record Header(String name, String value) {}

    public record Component(String topic, String key, String value, List<Header> headers) {}

    public record Part(int seq, byte[] value) {}

    public record Unit(String id, String unitId, String outcome, List<int[]> missing, List<Part> parts) {}

    /** The components of a unit: the same id on all, numbers from 1, the end mark on the last one. */
    public static List<Component> components(String destination, String id, List<String> items) {
        List<Component> made = new ArrayList<>();
        for (int number = 1; number <= items.size(); number++) {
            List<Header> headers = new ArrayList<>();
            headers.add(new Header("uow-id", id));
            headers.add(new Header("uow-seq", Integer.toString(number)));
            headers.add(new Header("uow-component-id", UUID.randomUUID().toString()));
            if (number == items.size()) {
                headers.add(new Header("uow-end", "true"));
            }
            made.add(new Component(destination + ".components", id, items.get(number - 1), headers));
        }
        return made;
    }

    /** The partition of a key: murmur2 with the highest bit cleared, modulo the number of partitions. */
    public static int partitionFor(byte[] key, int partitions) {
        return (murmur2(key) & 0x7fffffff) % partitions;
    }

    static int murmur2(byte[] key) {
        int factor = 0x5bd1e995;
        int h = 0x9747b28c ^ key.length;
        int at = 0;
        for (; at + 4 <= key.length; at += 4) {
            int k = little(key, at, 4) * factor;
            k ^= k >>> 24;
            h = h * factor ^ k * factor;
        }
        if (at < key.length) {
            h = (h ^ little(key, at, key.length - at)) * factor;
        }
        h = (h ^ h >>> 13) * factor;
        return h ^ h >>> 15;
    }

    private static int little(byte[] bytes, int at, int length) {
        int number = 0;
        for (int i = 0; i < length; i++) {
            number |= (bytes[at + i] & 0xff) << 8 * i;
        }
        return number;
    }

    private static final byte[] UNIT_1 = HexFormat.of().parseHex("c30119a0f7875c56f152");
    private static final List<String> OUTCOMES = List.of("complete", "partial", "expired", "cancelled", "failed");

    /** A unit of shape `envelope` or `reference` in Avro single-object encoding. */
    public static Unit unit(byte[] value) {
        if (value.length < 10 || !Arrays.equals(Arrays.copyOf(value, 10), UNIT_1)) {
            throw new IllegalArgumentException("not a uow.Unit of version 1 in Avro single-object encoding");
        }
        Avro in = new Avro(ByteBuffer.wrap(value, 10, value.length - 10));
        String id = in.string();
        String unitId = in.string();
        in.string(); // destination
        in.number(); // generation
        String outcome = OUTCOMES.get((int) in.number());
        in.number(); // reason
        in.number(); // opened_at
        in.number(); // closed_at
        if (in.number() == 1) {
            in.number(); // expires_at
        }
        in.number(); // count
        in.number(); // bytes
        List<int[]> missing = new ArrayList<>();
        for (long left = in.block(); left > 0; left = left > 1 ? left - 1 : in.block()) {
            missing.add(new int[] {(int) in.number(), (int) in.number()});
        }
        List<Part> parts = new ArrayList<>();
        for (long left = in.block(); left > 0; left = left > 1 ? left - 1 : in.block()) {
            parts.add(part(in));
        }
        return new Unit(id, unitId, outcome, missing, parts);
    }

    private static Part part(Avro in) {
        int seq = (int) in.number();
        in.bool(); // end
        in.optional(); // component_id
        in.optional(); // key
        byte[] value = in.optional();
        for (long left = in.block(); left > 0; left = left > 1 ? left - 1 : in.block()) {
            in.string(); // a header's name
            in.optional(); // and its value
        }
        in.number(); // timestamp
        in.string(); // source: topic
        in.number(); // partition
        in.number(); // offset
        if (in.number() == 1) { // reference: the value is not here, it lies at the source
            in.number();
            in.number();
        }
        return new Part(seq, value);
    }

    /** The few kinds of Avro's binary encoding that a unit is made of. */
    private record Avro(ByteBuffer in) {
        long number() {
            long raw = 0;
            for (int shift = 0; ; shift += 7) {
                byte next = in.get();
                raw |= (long) (next & 0x7f) << shift;
                if (next >= 0) {
                    return raw >>> 1 ^ -(raw & 1);
                }
            }
        }

        boolean bool() {
            return in.get() != 0;
        }

        byte[] bytes() {
            byte[] found = new byte[(int) number()];
            in.get(found);
            return found;
        }

        String string() {
            return new String(bytes(), StandardCharsets.UTF_8);
        }

        /** Null, or bytes or a text: a union of two branches. */
        byte[] optional() {
            return number() == 0 ? null : bytes();
        }

        /** How many items follow in this block of an array; a negative count has the size in bytes behind it. */
        long block() {
            long count = number();
            if (count < 0) {
                number();
            }
            return Math.abs(count);
        }
    }

    // -- JSON, and the command line ------------------------------------------------------------------------------------

    static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder made = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                made.append('\\').append(each);
            } else if (each < ' ') {
                made.append(String.format("\\u%04x", (int) each));
            } else {
                made.append(each);
            }
        }
        return made.append('"').toString();
    }

    static String json(Component component, int partition) {
        List<String> headers = new ArrayList<>();
        for (Header header : component.headers()) {
            headers.add("[" + quoted(header.name()) + ", " + quoted(header.value()) + "]");
        }
        return String.format(
                "{\"topic\": %s, \"partition\": %d, \"key\": %s, \"value\": %s, \"headers\": [%s]}",
                quoted(component.topic()),
                partition,
                quoted(component.key()),
                quoted(component.value()),
                String.join(", ", headers));
    }

    static String json(Unit unit) {
        List<String> missing = new ArrayList<>();
        for (int[] range : unit.missing()) {
            missing.add("[" + range[0] + ", " + range[1] + "]");
        }
        List<String> parts = new ArrayList<>();
        for (Part part : unit.parts()) {
            String value = part.value() == null ? null : new String(part.value(), StandardCharsets.UTF_8);
            parts.add("[" + part.seq() + ", " + quoted(value) + "]");
        }
        return String.format(
                "{\"id\": %s, \"unit_id\": %s, \"outcome\": %s, \"missing\": [%s], \"components\": [%s]}",
                quoted(unit.id()),
                quoted(unit.unitId()),
                quoted(unit.outcome()),
                String.join(", ", missing),
                String.join(", ", parts));
    }

    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    public static void main(String[] given) throws Exception {
        List<String> arguments = Arrays.asList(given);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        switch (arguments.isEmpty() ? "" : arguments.get(0)) {
            case "records" -> {
                int partitions = Integer.parseInt(arguments.get(2));
                for (Component each : components(arguments.get(1), arguments.get(3), arguments.subList(4, given.length))) {
                    OUT.println(json(each, partitionFor(each.key().getBytes(StandardCharsets.UTF_8), partitions)));
                }
            }
            case "partitions" -> {
                int partitions = Integer.parseInt(arguments.get(1));
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    OUT.println(partitionFor(HexFormat.of().parseHex(line), partitions));
                }
            }
            case "unit" -> {
                for (String line = in.readLine(); line != null; line = in.readLine()) {
                    OUT.println(json(unit(HexFormat.of().parseHex(line))));
                }
            }
            default -> {
                System.err.println("usage: Wire records DESTINATION PARTITIONS ID ITEM... | partitions PARTITIONS | unit");
                System.exit(2);
            }
        }
    }
}
