//go:build linux

package peers

import (
	"reflect"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
	"github.com/gatehouse/gatehouse/testbed/stack"
)

// TestReferenceIsSetUpAsTheEdge: subject and reference of a ratio differ only in Gatehouse.
func TestReferenceIsSetUpAsTheEdge(t *testing.T) {
	config, err := stack.LoadConfig("../../envoy/envoy.yaml")
	if err == nil {
		err = AddListeners(config, []Listener{{Name: "direct", Address: "127.0.0.1:1"}})
	}
	require.NoError(t, err)
	settings := func(name string) map[string]any {
		node, err := config.Find("static_resources", "listeners", name)
		require.NoError(t, err)
		var listener struct {
			Limit  any `yaml:"per_connection_buffer_limit_bytes"`
			Chains []struct {
				Filters []struct {
					Config map[string]any `yaml:"typed_config"`
				}
			} `yaml:"filter_chains"`
		}
		require.NoError(t, node.Decode(&listener))
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
