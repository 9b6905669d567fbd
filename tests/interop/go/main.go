// A member of a conversation that the interop tests hold with servers: the official Go client sends in every way it
// knows, and consumes by tag in a group. Each thing that happened is one line of JSON on standard output.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const waitLimit = 90 * time.Second

type event struct {
	Kind  string `json:"kind"`
	Keys  string `json:"keys"`
	Tags  string `json:"tags"`
	Body  string `json:"body"`
	Queue int    `json:"queue"`
	Place int64  `json:"place"`
	ID    string `json:"id"`
	Tries int32  `json:"tries"`
}

var printing sync.Mutex

func report(e event) {
	printing.Lock()
	defer printing.Unlock()
	line, err := json.Marshal(e)
	check(err)
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// message is the n-th of a kind; every other one is for the consumer.
func message(topic, kind string, n int) *primitive.Message {
	m := primitive.NewMessage(topic, []byte(kind+" "+strconv.Itoa(n)))
	m.WithKeys([]string{kind + strconv.Itoa(n)})
	m.WithTag([]string{"even", "odd"}[n%2])
	m.WithProperty("own", kind)
	return m
}

func sent(kind string, m *primitive.Message, result *primitive.SendResult) event {
	if result.Status != primitive.SendOK {
		check(fmt.Errorf("%s: status %d", m.GetKeys(), result.Status))
	}
	return event{Kind: kind, Keys: m.GetKeys(), Tags: m.GetTags(), Body: string(m.Body),
		Queue: result.MessageQueue.QueueId, Place: result.QueueOffset, ID: result.MsgID}
}

func send(namesrv, topic string, count int) {
	p, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		producer.WithGroupName("go_producer"),
		producer.WithRetry(0))
	check(err)
	check(p.Start())
	ctx := context.Background()
	var batch []*primitive.Message
	var callbacks sync.WaitGroup
	for n := 0; n < count; n++ {
		m := message(topic, "sync", n)
		result, err := p.SendSync(ctx, m)
		check(err)
		report(sent("sync", m, result))

		async := message(topic, "async", n)
		callbacks.Add(1)
		check(p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			check(err)
			report(sent("async", async, result))
			callbacks.Done()
		}, async))

		oneWay := message(topic, "oneway", n)
		check(p.SendOneWay(ctx, oneWay))
		report(event{Kind: "oneway", Keys: oneWay.GetKeys(), Tags: oneWay.GetTags(), Body: string(oneWay.Body)})

		batch = append(batch, message(topic, "batch", n))
	}
	_, err = p.SendSync(ctx, batch...)
	check(err)
	for _, m := range batch {
		report(event{Kind: "batch", Keys: m.GetKeys(), Tags: m.GetTags(), Body: string(m.Body)})
	}
	callbacks.Wait()
	check(p.Shutdown())
}

// consume takes what is tagged even, fails one message once, and ends when it has had so many.
func consume(namesrv, topic, group string, expected int) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{namesrv})),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err)
	var missing sync.WaitGroup
	missing.Add(expected)
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "even"}
	check(c.Subscribe(topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			report(event{Kind: "consumed", Keys: m.GetKeys(), Tags: m.GetTags(), Body: string(m.Body),
				Queue: m.Queue.QueueId, Place: m.QueueOffset, ID: m.MsgId, Tries: m.ReconsumeTimes})
			if m.GetKeys() == "sync4" && m.ReconsumeTimes == 0 {
				return consumer.ConsumeRetryLater, nil
			}
			missing.Done()
		}
		return consumer.ConsumeSuccess, nil
	}))
	check(c.Start())
	done := make(chan struct{})
	go func() { missing.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(waitLimit):
		check(fmt.Errorf("not everything was consumed within %s", waitLimit))
	}
	check(c.Shutdown())
}

func main() {
	namesrv := flag.String("namesrv", "", "address of the name server")
	topic := flag.String("topic", "", "a topic that exists")
	group := flag.String("group", "", "the consumer's group")
	count := flag.Int("count", 10, "messages of each kind; even")
	flag.Parse()
	rlog.SetLogLevel("error")
	send(*namesrv, *topic, *count)
	halves := *count / 2
	consume(*namesrv, *topic, *group, 4*halves)
}
