package nginxconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gatehouse/gatehouse/clients/go/testbed/require"
)

// printTree writes a tree, each directive as name[args]{block}.
func printTree(tree []*directive) string {
	var parts []string
	for _, d := range tree {
		text := fmt.Sprintf("%d:%s%q", d.line, d.name, d.args)
		if d.block != nil {
			text += "{" + printTree(d.block) + "}"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ name, text, want, wrong string }{
		{"directives", "a;\nb c 'd e' \"f;\"; # g\n#h\ni {\n  j k; }", `1:a[] 2:b["c" "d e" "f;"] 4:i[]{5:j["k"]}`, ""},
		{"escapes", `a \" "\"" '\'' "\\" \; "\n" \d;`, `1:a["\"" "\"" "'" "\\" "\\;" "\n" "\\d"]`, ""},
		{"variables", `a ${b}c $d{e;}`, `1:a["${b}c" "$d"]{1:e[]}`, ""},
		{"braces of a variable", `a "${b}" x${c}y;`, `1:a["${b}" "x${c}y"]`, ""},
		{"parentheses", `if ($a = "b") { c; }`, `1:if["($a" "=" "b" ")"]{1:c[]}`, ""},
		{"sharp within a word", `a b#c;`, `1:a["b#c"]`, ""},
		{"Lua", "a_by_lua_block{ x() }\nb;", `1:a_by_lua_block[" x() "] 2:b[]`, ""},
		{"Lua with braces", "a_by_lua_block { x = {{}, '}', \"}\\\"}\" } }\nb;",
			`1:a_by_lua_block[" x = {{}, '}', \"}\\\"}\" } "] 2:b[]`, ""},
		{"Lua with comments", "a_by_lua_block {\n-- don't }\n--[[ } ' ]] --[==[ }]]\n]==] x()\n}\nb;",
			`1:a_by_lua_block["\n-- don't }\n--[[ } ' ]] --[==[ }]]\n]==] x()\n"] 6:b[]`, ""},
		{"Lua with long strings and indexes", "a_by_lua_block { x = [[ } ]] .. [=[ }]] ]=] .. y[z[1]] - 1 } b;",
			`1:a_by_lua_block[" x = [[ } ]] .. [=[ }]] ]=] .. y[z[1]] - 1 "] 1:b[]`, ""},
		{"Lua with a variable", "set_by_lua_block $a { return 1 } b;", `1:set_by_lua_block["$a" " return 1 "] 1:b[]`, ""},
		{"no semicolon", "a", "", ":1: ends within"},
		{"no end of a quote", "a 'b;\n", "", ":2: ends within"},
		{"text after a quote", "a 'b'c;", "", `unexpected 'c' after a quote`},
		{"no end of a block", "a {\n b;\n", "", "a brace too many, or too few"},
		{"end of no block", "a; }", "", "a brace too many, or too few"},
		{"no end of Lua", "a_by_lua_block { x = [[ }", "", "ends within"},
		{"nothing before a semicolon", "a;;", "", "unexpected ';'"},
		{"deep", strings.Repeat("a {", 100), "", "more than 64 blocks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, reader := loadFiles("nginx.conf", []byte(c.text))
			if wrong := strings.Join(reader.problems, "\n"); (wrong == "") != (c.wrong == "") ||
				!strings.Contains(wrong, c.wrong) {
				t.Errorf("wrong: got %q, want %q", wrong, c.wrong)
			} else if got := printTree(tree); wrong == "" && got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestInclude: paths are relative to nginx.conf, also in included files; a pattern may match nothing.
func TestInclude(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "conf.d"), 0o700))
	for name, text := range map[string]string{
		"conf.d/a.conf": "a;\ninclude conf.d/c.inc;", "conf.d/b.conf": "b;", "conf.d/c.inc": "c;",
		"self.conf": "include self.conf; include self.conf;",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for _, c := range []struct{ text, want, wrong string }{
		{"include conf.d/*.conf; include none/*; d;", `1:a[] 1:c[] 1:b[] 1:d[]`, ""},
		{"include " + dir + "/conf.d/b.conf;", "1:b[]", ""},
		{"include none.conf;", "", "nginx.conf:1: include none.conf: this machine has no such file"},
		{"include self.conf;", "", "more than 64 blocks or files in one another"},
		{"include /usr/share/gatehouse/nginx/push.conf;",
			`3:access_log["off"] 4:client_max_body_size["4m"] 5:client_body_buffer_size["4m"] 6:client_body_timeout["10s"] 7:keepalive_timeout["3600s"] 8:keepalive_requests["1000000000"] 9:location["/"]{9:content_by_lua_block[" require(\"gatehouse.push\").apply() "]}`, ""},
	} {
		tree, reader := loadFiles(filepath.Join(dir, "nginx.conf"), []byte(c.text))
		if wrong := strings.Join(reader.problems, "\n"); (wrong == "") != (c.wrong == "") ||
			!strings.Contains(wrong, c.wrong) {
			t.Errorf("%s: wrong: got %.200q, want %q", c.text, wrong, c.wrong)
		} else if got := printTree(tree); wrong == "" && got != c.want {
			t.Errorf("%s: got %s, want %s", c.text, got, c.want)
		}
	}
}

// TestDumpedFiles: an output of nginx -T has each file once, and needs no file of this machine.
func TestDumpedFiles(t *testing.T) {
	const dump = "# configuration file /etc/x/nginx.conf:\na;\ninclude d/*;\ninclude /b;\n\n# configuration file " +
		"/etc/x/d/2:\nd2;\n\n# configuration file /etc/x/d/1:\nd1;\ninclude /b;\n\n# configuration file /b:\nb;\n"
	tree, reader := loadFiles("-", []byte(dump))
	if got, want := printTree(tree), "1:a[] 1:d1[] 1:b[] 1:d2[] 1:b[]"; got != want || reader.problems != nil {
		t.Errorf("got %s, %q, want %s", got, reader.problems, want)
	}
	_, reader = loadFiles("-", []byte(strings.ReplaceAll(dump, "/b:", "/c:")))
	if got := strings.Join(reader.problems, "\n"); !strings.Contains(got,
		"/etc/x/nginx.conf:3: include /b: is not in the output of nginx -T") {
		t.Errorf("got %q", got)
	}
}

// FuzzAnalyze: no file ends the program.
func FuzzAnalyze(f *testing.F) {
	f.Add(edgeConfig)
	f.Add("http { content_by_lua 'gatehouse.push apply() gatehouse.edge drain()'; server { access_by_lua " +
		"'gatehouse.edge access()'; } }")
	f.Add("http { init_by_lua; access_by_lua 'gatehouse.edge access()'; auth_request /; location / { proxy_pass a; } " +
		"server { error_page; proxy_pass; } }")
	for _, c := range bypasses {
		f.Add("http { server { " + strings.ReplaceAll(c.server, include,
			`access_by_lua_block { require("gatehouse.edge").access() }`) + " } }")
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "include") {
			t.Skip("files of this machine")
		}
		Analyze("nginx.conf", []byte(text), "rules", []byte(edgeRules))
	})
}
