package chaos

import "net/http"

// trapRequests is the number of connections that ask for a trap: enough for each worker to trap.
const trapRequests = 8

// TrapModule makes the module at url trap.
func TrapModule(client *http.Client, url string) {
	for range trapRequests {
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
