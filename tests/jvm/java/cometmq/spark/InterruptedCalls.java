package cometmq.spark;

import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.concurrent.atomic.AtomicBoolean;

/** Calls of an interrupted thread, as Spark's are when a query is stopped, to a service that answers {"job": "j"}. */
public final class InterruptedCalls {
    private InterruptedCalls() {}

    private static void require(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        require(JobService.unavailable() == null, "the service does not start: " + JobService.unavailable());
        for (String call : new String[] {"begin", "commit", "abandon"}) {
            Thread.currentThread().interrupt();
            require(JobService.call(JobService.request(call)).get("job").asText().equals("j"), call + ": no answer");
            require(Thread.interrupted(), call + ": the interrupt is lost");
        }
        String begin = silent("begin");
        require(begin.equals("interrupted while a write was begun or committed"), begin);
        String commit = silent("commit");
        require(commit.contains("the rows may be stored, now or later; do not run the job again"), commit);
        System.out.println("passed");
    }

    /** Return the error of a call that gets no answer, and that is interrupted until it ends. */
    private static String silent(String call) throws InterruptedException {
        Thread caller = Thread.currentThread();
        AtomicBoolean ended = new AtomicBoolean();
        Thread stopping = new Thread(() -> {
            while (!ended.get()) {
                caller.interrupt();
                Thread.yield();
            }
        });
        stopping.start();
        String text = "an answer";
        try {
            JobService.call(JobService.request(call).put("silent", true));
        } catch (UncheckedIOException error) {
            require(error.getCause() instanceof InterruptedIOException, "another cause: " + error.getCause());
            text = error.getMessage();
        }
        boolean marked = caller.isInterrupted();
        ended.set(true);
        Thread.interrupted();
        while (stopping.isAlive()) {
            try {
                stopping.join();
            } catch (InterruptedException late) {
                continue;
            }
        }
        Thread.interrupted();
        require(marked, call + ": the interrupt is lost");
        return text;
    }
}
