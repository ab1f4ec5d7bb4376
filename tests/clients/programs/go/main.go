// Read a stream with one of the libraries below, and print each event as one line of JSON. Arguments: the library, the URL.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"time"

	r3labs "github.com/r3labs/sse/v2"
	gosse "github.com/tmaxmax/go-sse"
	"gopkg.in/cenkalti/backoff.v1"
)

// By default, both libraries fail at an event of more than 64 KiB, reconnect, and fail at the same event again.
const maxEventBytes = 16 << 20

func print(event, id, data string) {
	line, _ := json.Marshal(map[string]string{"event": event, "id": id, "data": data})
	fmt.Println(string(line))
}

// A complete ID is JSON, or has the compact form `~~…~`.
func isComplete(id []byte) bool {
	return json.Valid(id) || len(id) > 3 && bytes.HasPrefix(id, []byte("~~")) && bytes.HasSuffix(id, []byte("~"))
}

// If a connection breaks in the middle of an event, the library delivers the incomplete event and stores its ID. The event
// then has the previous ID or an incomplete one.
func readWithR3labs(url string) {
	client := r3labs.NewClient(url, r3labs.ClientMaxBufferSize(maxEventBytes))
	// The default gives up 15 minutes after the first connection, and waits longer after each break.
	client.ReconnectStrategy = backoff.NewConstantBackOff(time.Second)
	lastID := ""
	for { // SubscribeRaw returns when the server ends the stream. `client` keeps the last ID.
		err := client.SubscribeRaw(func(event *r3labs.Event) {
			if len(event.Data) == 0 {
				return
			}
			if string(event.ID) == lastID || !isComplete(event.ID) {
				client.LastEventID.Store([]byte(lastID))
				return
			}
			lastID = string(event.ID)
			print(string(event.Event), lastID, string(event.Data))
		})
		fmt.Fprintln(os.Stderr, "ended:", err)
		time.Sleep(time.Second)
	}
}

func readWithGoSSE(url string) {
	lastID := ""
	for { // Connect returns when the response is not a stream. A new connection needs the last ID.
		request, _ := http.NewRequest(http.MethodGet, url, http.NoBody)
		if lastID != "" {
			request.Header.Set("Last-Event-ID", lastID)
		}
		connection := gosse.NewConnection(request)
		connection.Buffer(nil, maxEventBytes)
		connection.SubscribeToAll(func(event gosse.Event) {
			lastID = event.LastEventID
			if event.Data != "" { // The library also reports an `id:` or `retry:` without data as an event.
				print(event.Type, lastID, event.Data)
			}
		})
		fmt.Fprintln(os.Stderr, "ended:", connection.Connect())
		time.Sleep(time.Second)
	}
}

func main() {
	programs := map[string]func(string){
		"r3labs-sse": readWithR3labs,
		"go-sse":     readWithGoSSE,
	}
	programs[os.Args[1]](os.Args[2])
}
