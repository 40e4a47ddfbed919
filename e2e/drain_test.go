package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestDrain drains the edge as the end of a pod does: the edge still answers, and asks every client to close its
// connection.
func TestDrain(t *testing.T) {
	t.Parallel()
	e := start(t, stack.Options{})
	e.put("/v1/products/42", "body")
	e.awaitAnswer("the object is at the edge", hasBody("body"), "GET /v1/products/42")
	closes := func(want bool) {
		t.Helper()
		for path, status := range map[string]int{
			"/v1/products/42": http.StatusOK, "/v1/fleet/config": http.StatusUnauthorized, "/other": http.StatusOK,
		} {
			for range 8 { // for each worker some
				await(t, path, patience, func() error {
					client := newClient()
					defer client.CloseIdleConnections()
					answer, err := client.Get(e.EdgeURL() + path)
					if err != nil {
						return err
					}
					_ = answer.Body.Close()
					if answer.StatusCode != status {
						t.Fatalf("%s: got %d, want %d", path, answer.StatusCode, status)
					}
					if answer.Close != want {
						return fmt.Errorf("connection: close: got %v, want %v", answer.Close, want)
					}
					return nil
				})
			}
		}
	}
	closes(false)
	if out, err := gatehousectl(t, "drain", "--admin", e.EnvoyAdminURL()[len("http://"):]); err != nil || out != "OK\n" {
		t.Fatalf("gatehousectl drain: %q, %v", out, err)
	}
	closes(true)
	answer, err := http.Post(e.EnvoyAdminURL()+"/healthcheck/ok", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	closes(false)
}
