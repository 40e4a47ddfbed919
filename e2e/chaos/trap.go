package chaos

import "net/http"

// trapAsks is the number of connections that ask for a trap: enough for each worker to trap.
const trapAsks = 8

// Trap makes the module at url trap.
func Trap(client *http.Client, url string) {
	for range trapAsks {
		request, err := http.NewRequest(http.MethodPost, url, nil)
		if err != nil {
			panic(err) // the URL is ours
		}
		request.Header.Set("x-chaos-trap", "1")
		request.Close = true // the next one may reach another worker
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
		}
	}
}
