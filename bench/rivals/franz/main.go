// A rival: Go's net/http with one franz-go consumer that all clients share. Arguments: the brokers, and the topics.
//
// Each record is encoded once. The frames of a fetch go to each client's channel as one item, and all items of a channel are
// one write. A client whose channel is full is dropped.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

const maxQueued = 1000

type client chan []byte

var (
	mutex   sync.Mutex
	clients = map[string]map[client]bool{}
)

func fanOut(consumer *kgo.Client) {
	for {
		fetches := consumer.PollFetches(context.Background())
		frames := map[string][]byte{}
		fetches.EachRecord(func(record *kgo.Record) {
			frame := fmt.Appendf(frames[record.Topic], "id: %d:%d\ndata: ", record.Partition, record.Offset)
			frames[record.Topic] = append(append(frame, record.Value...), "\n\n"...)
		})
		mutex.Lock()
		for topic, encoded := range frames {
			for each := range clients[topic] {
				select {
				case each <- encoded:
				default:
					close(each)
					delete(clients[topic], each)
				}
			}
		}
		mutex.Unlock()
	}
}

func stream(response http.ResponseWriter, request *http.Request) {
	topic, queue := request.PathValue("topic"), make(client, maxQueued)
	mutex.Lock()
	clients[topic][queue] = true
	mutex.Unlock()
	defer func() {
		mutex.Lock()
		delete(clients[topic], queue)
		mutex.Unlock()
	}()
	control := http.NewResponseController(response)
	response.Header().Set("Content-Type", "text/event-stream")
	response.Write([]byte(":ok\n\n"))
	for control.Flush() == nil {
		select {
		case <-request.Context().Done():
			return
		case frames, open := <-queue:
			if !open {
				return
			}
			response.Write(frames)
			for range len(queue) {
				response.Write(<-queue)
			}
		}
	}
}

func main() {
	topics := strings.Split(os.Args[2], ",")
	for _, topic := range topics {
		clients[topic] = map[client]bool{}
	}
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()),
	)
	if err != nil {
		log.Fatal(err)
	}
	go fanOut(consumer)
	http.HandleFunc("GET /{topic}", stream)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("Listening at: http://%s", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}
