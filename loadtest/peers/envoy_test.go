//go:build linux

package peers

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/testbed/stack"
)

func TestListenersAreAddedWithTheirClusters(t *testing.T) {
	config, err := stack.LoadConfig("../../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const origin, auth = "127.0.0.1:1001", "127.0.0.1:1002"
	err = AddListeners(config, []Listener{
		{Name: "direct", Address: "127.0.0.1:1"}, {Name: "origin", Address: "127.0.0.1:2", Upstream: origin},
		{Name: "both", Address: "127.0.0.1:3", Upstream: origin, Auth: auth},
	})
	if err = errors.Join(err, DirectElsewhere(config)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"listeners direct", "listeners origin", "listeners both", "clusters " + origin,
		"clusters " + auth} {
		if _, err := config.Find(append([]string{"static_resources"}, strings.Fields(path)...)...); err != nil {
			t.Error(err)
		}
	}
	text, err := config.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{"{name: \"" + origin + "\"": 1, "ext_authz.v3": 1,
		"direct_response: {status: 200": 3} {
		if got := strings.Count(string(text), part); got != want {
			t.Errorf("got %q %d times, want %d", part, got, want)
		}
	}
	if err := AddListeners(config, []Listener{{Name: "bad", Address: "nowhere"}}); err == nil {
		t.Error("got no error for an address without a port")
	}
}

// TestReferenceIsSetUpAsTheEdge: subject and reference of a ratio differ only in Gatehouse.
func TestReferenceIsSetUpAsTheEdge(t *testing.T) {
	config, err := stack.LoadConfig("../../envoy/envoy.yaml")
	if err == nil {
		err = AddListeners(config, []Listener{{Name: "direct", Address: "127.0.0.1:1"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	settings := func(name string) map[string]any {
		node, err := config.Find("static_resources", "listeners", name)
		if err != nil {
			t.Fatal(err)
		}
		var listener struct {
			Limit  any `yaml:"per_connection_buffer_limit_bytes"`
			Chains []struct {
				Filters []struct {
					Config map[string]any `yaml:"typed_config"`
				}
			} `yaml:"filter_chains"`
		}
		if err := node.Decode(&listener); err != nil {
			t.Fatal(err)
		}
		settings := listener.Chains[0].Filters[0].Config
		settings["per_connection_buffer_limit_bytes"] = listener.Limit
		for _, own := range []string{"stat_prefix", "http_filters", "route_config"} {
			delete(settings, own)
		}
		return settings
	}
	if got, want := settings("direct"), settings("edge"); !reflect.DeepEqual(got, want) {
		t.Errorf("got settings %v\nwant %v", got, want)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	_, err := find("no-such-program")
	if missing, ok := errors.AsType[*MissingError](err); !ok || missing.Error() != "no-such-program is not installed" {
		t.Errorf("got %v", err)
	}
}
