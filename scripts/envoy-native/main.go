// Envoy-native writes envoy/envoy-native.yaml, the configuration with the filter as a dynamic module, from
// envoy/envoy.yaml, the configuration with the Wasm module, so that all else is the same in both:
//
//	go run ./scripts/envoy-native >envoy/envoy-native.yaml
//
// A test fails if the file differs from the program's output, or from the configuration in the native edge's tests.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	text, err := os.ReadFile("envoy/envoy.yaml")
	if err == nil {
		var out string
		if out, err = toNative(string(text)); err == nil {
			_, err = os.Stdout.WriteString(out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "envoy-native:", err)
		os.Exit(1)
	}
}

const head = `# Gatehouse in Envoy 1.40 as a dynamic module, which costs less than the Wasm module of envoy.yaml, and is trusted with
# all of Envoy (docs/decisions/native.md). Complete and runnable as it stands:
#
#   envoy -c /etc/envoy/envoy-native.yaml
#
# It needs the module in /usr/lib/gatehouse/libgatehouse.so, a directory /run/gatehouse (mode 0700, owned by the user of
# both Envoy and gatehouse-sidecar) and a service on 127.0.0.1:8081. Edit the first part: the edge's address and the
# rules. The rest can stay unchanged.
#
# The unit gatehouse-envoy applies changed rules on a reload, by gatehousectl envoy reload (docs/rules.md).
#
# Lines that begin with "#session" enable session tokens: sed 's/#session //' envoy-native.yaml
# Lines that begin with "#source" are for use_remote_address: false, see there.
# Lines that begin with "#spans" have Envoy send spans to a collector: sed 's/#spans //' envoy-native.yaml
#
# Editors with yaml-language-server check and complete the rules by this file; gatehousectl schema envoy prints it:
# yaml-language-server: $schema=envoy.schema.json
#
# Gatehouse's developers: scripts/envoy-native makes this file from envoy.yaml.

`

// module begins both filters, at the indentation of typed_config's fields.
const module = `              "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
              dynamic_module_config: %s
              filter_name: gatehouse
              filter_config:
                "@type": type.googleapis.com/google.protobuf.Struct
                value:
`

const (
	anchored = `&module {module: {local: {filename: /usr/lib/gatehouse/libgatehouse.so}}, do_not_close: true}`
	alias    = `*module`
)

// claims copies the claims of tokens to where a dynamic module can read them.
const claims = `          #session # Copies the token's claims to where the module can read them.
          #session - name: gatehouse-claims
          #session   typed_config:
          #session     "@type": type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config
          #session     on_request_headers:
`

const claim = `          #session     - object_key: gatehouse.claims.gatehouse.%[1]s # gatehouse.claims.METADATA.CLAIM, METADATA as below
          #session       factory_key: envoy.string
          #session       format_string:
          #session         text_format_source: {inline_string: "%%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:gatehouse:%[1]s)%%"}
          #session         omit_empty_values: true
          #session       skip_if_empty: true
`

const runtime = `# Counters in /stats/prometheus without the prefix envoy_dynamicmodulescustom_, as those of the Wasm module.
layered_runtime:
  layers:
  - name: gatehouse
    static_layer: {envoy.reloadable_features.dynamic_modules_strip_custom_stat_prefix: true}
  - {name: admin, admin_layer: {}}

`

const heap = `# Size these for the machine. The heap is Envoy's, with its buffers; the records are in Go's, which comes on top, unseen
# by this monitor. The sidecar's memory.bytes bounds them; GOMEMLIMIT in Envoy's environment makes Go collect
# more often near a limit. At rest, the heap must be well below three quarters full.
`

// toNative returns envoy-native.yaml for envoy.yaml.
func toNative(text string) (string, error) {
	e := editor{rest: text}
	e.skipTo("static_resources:\n")
	e.appendText(head)
	e.copyTo("          #source - name: envoy.filters.http.set_filter_state\n")
	e.appendText(claims)
	for _, name := range []string{"sub", "ver"} {
		e.appendText(fmt.Sprintf(claim, name))
	}
	wasm := `              "@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm` + "\n"
	e.copyTo(wasm)
	e.skipTo("                  # Here, not in the plugin's own configuration")
	e.skipTo("                      # ---- the rules ")
	e.appendText(fmt.Sprintf(module, anchored))
	rules := e.cutTo("                # After a trap the worker gets a new VM")
	e.appendText(strings.ReplaceAll("\n"+rules, "\n                      ", "\n                  ")[1:])
	e.skipTo("          - &router\n")
	e.copyTo("          # Limits. A stream that waits in a VM when that VM traps")
	e.appendText("          # Limits. The route's timeout doesn't run yet while a stream waits for the sidecar.\n")
	e.skipTo("          stream_idle_timeout: 20s")
	e.copyTo(wasm)
	e.appendText(fmt.Sprintf(module, alias))
	e.skipTo("                      push_listener: true\n")
	e.appendText("                  push_listener: true\n")
	e.skipTo("          - *router\n")
	e.copyTo("# Labels of Gatehouse's counters")
	e.appendText(runtime)
	e.copyTo("# Size these for the machine.")
	e.appendText(heap)
	e.skipTo("overload_manager:\n")
	e.appendText(e.rest)
	return e.out.String(), e.err
}

// editor copies a text, and leaves out or adds parts.
type editor struct {
	out  strings.Builder
	rest string
	err  error // the first one
}

func (e *editor) appendText(text string) { e.out.WriteString(text) }

// cutTo removes and returns the rest up to mark.
func (e *editor) cutTo(mark string) string {
	before, _, found := strings.Cut(e.rest, mark)
	if !found && e.err == nil {
		e.err = fmt.Errorf("envoy.yaml has no %q where it is expected", mark)
	}
	if e.err != nil {
		return ""
	}
	e.rest = e.rest[len(before):]
	return before
}

func (e *editor) copyTo(mark string) { e.appendText(e.cutTo(mark)) }

func (e *editor) skipTo(mark string) { e.cutTo(mark) }
