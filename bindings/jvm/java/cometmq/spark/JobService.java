package cometmq.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * The driver's side of a write, in Python: begin a job, commit it exactly once, or leave nothing. A process of
 * cometmq.spark.job_service answers one request at a time; idle ones are kept, and end with the JVM.
 */
final class JobService {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int IDLE_MAX = 2;
    private static final int ENDED_WAIT_S = 10;
    /** Longest wait for the answer of an interrupted call: its caller needs to know whether it began or committed. */
    private static final int INTERRUPTED_WAIT_S = 10;
    private static final Deque<JobService> IDLE = new ArrayDeque<>();

    private final Process process;
    private final OutputStream requests;
    private final BufferedReader answers;
    /** Reads, so that an interrupted caller need not wait for the answer. */
    private final ExecutorService reader = Executors.newSingleThreadExecutor(task -> {
        Thread thread = new Thread(task, "cometmq-job-service");
        thread.setDaemon(true);
        return thread;
    });

    private JobService() throws IOException {
        ProcessBuilder builder = new ProcessBuilder(python(), "-m", "cometmq.spark.job_service");
        process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        requests = process.getOutputStream();
        answers = process.inputReader(StandardCharsets.UTF_8);
    }

    /** The interpreter that Spark's own Python processes on the driver have, in Spark's order. */
    private static String python() {
        String driver = System.getenv("PYSPARK_DRIVER_PYTHON");
        String workers = System.getenv("PYSPARK_PYTHON");
        return driver != null ? driver : workers != null ? workers : "python3";
    }

    static ObjectNode request(String call) {
        return JSON.createObjectNode().put("call", call);
    }

    /** Return why no job can be begun from this JVM, or null. */
    static String unavailable() {
        try {
            call(request("ping"));
            return null;
        } catch (JobException error) {
            return error.getMessage();
        }
    }

    /**
     * Return the answer to a request. An interrupted thread stays interrupted, and gets the answer where one comes within
     * {@link #INTERRUPTED_WAIT_S}: Spark stops at its next step, knows the job that was begun, and abandons it.
     *
     * @throws UncheckedIOException none came; the cause is one that Spark takes for its own interruption
     */
    static JsonNode call(ObjectNode request) {
        JobService service = taken();
        JsonNode answer = null;
        try {
            answer = service.answer(JSON.writeValueAsBytes(request));
        } catch (InterruptedIOException error) {
            throw new UncheckedIOException(error.getMessage() + (request.get("call").asText().equals("commit")
                    ? ": the rows may be stored, now or later; do not run the job again, it would write twice, unless it "
                            + "has a jobId or is a stream" : ""), error);
        } catch (IOException error) {
            throw new JobException("the Python process that begins and commits writes ended: " + error.getMessage(), error);
        } finally {
            service.give(answer != null);
        }
        if (answer.has("error")) {
            throw new JobException(answer.get("error").asText(), null);
        }
        return answer;
    }

    private static JobService taken() {
        synchronized (IDLE) {
            while (!IDLE.isEmpty()) {
                JobService idle = IDLE.pop();
                if (idle.process.isAlive()) {
                    return idle;
                }
                idle.reader.shutdownNow();
            }
        }
        try {
            return new JobService();
        } catch (IOException error) {
            throw new JobException("writes are begun and committed by Python on the driver, and " + python()
                    + " cannot be started: " + error.getMessage() + "; set PYSPARK_DRIVER_PYTHON or PYSPARK_PYTHON to an interpreter that has cometmq",
                    error);
        }
    }

    private JsonNode answer(byte[] request) throws IOException {
        try {
            requests.write(request);
            requests.write('\n');
            requests.flush();
        } catch (IOException error) {
            throw ended();
        }
        try {
            String line = line(reader.submit(answers::readLine));
            if (line == null) {
                throw ended();
            }
            return JSON.readTree(line);
        } catch (ExecutionException error) {
            throw new IOException(error.getCause());
        }
    }

    private static String line(Future<String> reading) throws ExecutionException, InterruptedIOException {
        try {
            return reading.get();
        } catch (InterruptedException first) {
            try {
                return reading.get(INTERRUPTED_WAIT_S, TimeUnit.SECONDS);
            } catch (InterruptedException | TimeoutException last) {
                throw new InterruptedIOException("interrupted while a write was begun or committed");
            } finally {
                Thread.currentThread().interrupt();
            }
        }
    }

    private IOException ended() {
        process.onExit().completeOnTimeout(process, ENDED_WAIT_S, TimeUnit.SECONDS).join();
        String code = process.isAlive() ? "no answer" : "exit code " + process.exitValue();
        return new IOException(python() + " -m cometmq.spark.job_service: " + code + "; its error output is the driver's. "
                + "PYSPARK_DRIVER_PYTHON, or PYSPARK_PYTHON without it, must name an interpreter that has cometmq");
    }

    private void give(boolean usable) {
        synchronized (IDLE) {
            if (usable && IDLE.size() < IDLE_MAX) {
                IDLE.push(this);
                return;
            }
        }
        // A commit that was cut off is resumed by the store's next writer. Nothing of it goes on beside the next call.
        process.destroyForcibly();
        process.onExit().completeOnTimeout(process, ENDED_WAIT_S, TimeUnit.SECONDS).join();
        reader.shutdownNow();
    }
}
