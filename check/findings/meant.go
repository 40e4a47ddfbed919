package findings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/spelling"
)

// otherNames are names of a field in other products, in lower case without separators. Plural, singular and case need
// no entry.
var otherNames = map[string][]string{
	"methods":        {"verbs", "httpmethods"},
	"path":           {"exact", "exactpath", "uri", "url", "location"},
	"prefix":         {"pathprefix", "startswith", "urlprefix"},
	"permissions":    {"scopes", "roles", "groups", "require", "requires", "claims"},
	"query":          {"queryparams", "queryparameters", "params", "parameters", "args", "querystring", "varyqueryparams"},
	"languages":      {"langs", "locales", "acceptlanguage"},
	"on_miss":        {"miss", "ifmissing"},
	"virtual_hosts":  {"vhosts", "hosts", "servers"},
	"domains":        {"hosts", "hostnames", "servernames"},
	"rules":          {"routes", "policies", "locations"},
	"auth":           {"authentication", "authorization", "authn", "authz", "authenticate", "authorize", "requireauth"},
	"cache":          {"caching", "proxycache"},
	"max_staleness":  {"staleness", "maxstale"},
	"default":        {"defaultaction", "defaultpolicy", "fallback"},
	"credentials":    {"authentication", "headers"},
	"id_header":      {"deviceheader", "deviceidheader", "userheader", "id"},
	"secret_header":  {"tokenheader", "passwordheader", "secret", "token"},
	"api_key_header": {"apikey", "keyheader", "keyname", "apikeyname"},
	"basic":          {"basicauth", "httpbasic"},
	"bearer":         {"bearerauth", "bearertoken"},
	"filter_state":   {"state"},
	"log_hits":       {"logcached", "accesslog"},
}

// otherWords are words of other products for a word of the rules.
var otherWords = map[string][]string{
	"pass":       {"allow", "permit", "accept", "open", "public", "forward", "upstream", "origin", "proxy", "none"},
	"deny":       {"block", "reject", "forbid", "refuse", "drop", "401", "403"},
	"would_deny": {"dryrun", "shadow", "trial", "audit"},
	"fetch":      {"load", "pull", "sidecar", "redis"},
	"serve":      {"true", "yes", "on", "allow"},
	"bypass":     {"false", "no", "off", "pass", "upstream"},
	"shared":     {"public", "global", "all"},
	"device":     {"private", "user", "client", "perdevice"},
	"host":       {"vhost", "domain", "hostname", "perhost"},
	"issue":      {"true", "yes", "on", "token", "create"},
	"envoy":      {"default", "connection", "peer"},
}

// unknownFields has advice for fields that rules don't have, by field name without separators.
var unknownFields = []struct {
	names  []string
	advice string
}{
	{[]string{"ttl", "maxage", "expires", "cachettl", "cachecontrol", "cachevalid", "proxycachevalid"},
		"remove it: the publication of an object sets its lifetime, gatehousectl put --ttl 10m (docs/publish.md)"},
	{[]string{"regex", "pathregex", "saferegex", "regexp", "pattern", "glob"},
		"name a path, or a prefix that ends with a slash, in a rule for each: rules have no expressions (docs/rules.md)"},
	{[]string{"host", "hosts", "hostname", "hostnames", "domain", "domains", "servername", "authority"},
		"put the rule under virtual_hosts, at the top level: virtual_hosts: {NAME: {domains: [shop.example.com], " +
			"rules: […]}}"},
	{[]string{"allow", "allowed", "allowlist", "whitelist", "deny", "denied", "denylist", "blacklist", "action", "policy"},
		"a rule with auth refuses requests without a credential, any other rule lets them pass; default: deny, at the top " +
			"level, refuses what no rule names"},
	{[]string{"jwt", "oidc", "issuer", "jwks", "jwksuri", "audience", "oauth", "oauth2"},
		"verify JWTs by the proxy; for session tokens see session (docs/rules.md)"},
	{[]string{"apikey", "apikeys", "keyauth", "basicauth", "bearer", "apikeyheader", "idheader", "secretheader", "basic"},
		"set where requests have credentials at the top level, credentials: {api_key_header: x-api-key}, and auth: {} in " +
			"the rule"},
	{[]string{"ratelimit", "ratelimits", "limit", "limits", "quota"}, "limit requests by the proxy (docs/devices.md)"},
	{[]string{"users", "user", "consumers", "devices", "device", "password", "secret", "token", "tokens"},
		"register devices in Redis, gatehousectl device put (docs/devices.md)"},
	{[]string{"upstream", "backend", "service", "proxypass", "target", "route", "rewrite", "redirect", "headers", "cors"},
		"set it in the configuration of the proxy, which routes requests"},
}

// normalizeName returns a name in lower case without separators and plural s.
func normalizeName(name string) string {
	name = strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(strings.ToLower(name))
	if rest, found := strings.CutSuffix(name, "ies"); found {
		return rest + "y"
	}
	return strings.TrimSuffix(name, "s")
}

// isSameName reports whether a name stands for a known name.
func isSameName(name, known string, others map[string][]string) bool {
	return normalizeName(name) == normalizeName(known) || slices.ContainsFunc(others[known], func(other string) bool {
		return normalizeName(other) == normalizeName(name)
	})
}

// findFields returns edits of an unknown field: to known fields of the same object, and to fields of an object beside
// the field.
func findFields(name string, value any, beside []policy.Field, present map[string]any) (all []edit) {
	add := func(f *policy.Field) {
		all = append(all, edit{key: f.Name})
		for _, v := range convertValue(f, value) {
			all = append(all, edit{f.Name, v})
		}
	}
	var known []string
	for i := range beside {
		known = append(known, beside[i].Name)
		if _, there := present[beside[i].Name]; !there && isSameName(name, beside[i].Name, otherNames) {
			add(&beside[i])
		}
	}
	for i := range beside {
		if _, there := present[beside[i].Name]; there {
			continue
		}
		for _, f := range fieldsIn(&beside[i]) {
			if !isSameName(name, f.Name, otherNames) {
				continue
			}
			for _, v := range append([]any{value}, convertValue(&f, value)...) {
				all = append(all, edit{beside[i].Name, map[string]any{f.Name: v}})
			}
		}
	}
	near := spelling.Nearest(name, known)
	if _, there := present[near]; near != "" && !there {
		i := slices.IndexFunc(beside, func(f policy.Field) bool { return f.Name == near })
		add(&beside[i])
	}
	return all
}

// fieldsIn returns the fields of an object form of a field.
func fieldsIn(f *policy.Field) []policy.Field {
	for ; f != nil; f = f.Or {
		if f.Form == policy.Object {
			return f.Fields
		}
	}
	return nil
}

// convertValue returns possible meanings of a value that a field doesn't take.
func convertValue(f *policy.Field, value any) (all []any) {
	text, isText := value.(string)
	list, isList := value.([]any)
	for ; f != nil; f = f.Or {
		switch {
		case f.Form == policy.List && isText:
			var items, corrected []any
			for _, item := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(",;| ", r) }) {
				items, corrected = append(items, item), append(corrected, firstOf(convertValue(f.Item, item), item))
			}
			all = append(all, items, corrected, []any{text})
		case f.Form == policy.Object:
			all = append(all, convertToObjects(f, value)...)
		case f.Form > policy.List && isList && len(list) == 1:
			all = append(all, list[0])
			all = append(all, convertValue(f, list[0])...)
		case f.Form == policy.Word:
			all = append(all, convertToWords(f, fmt.Sprint(value))...)
		case f.Form == policy.Flag:
			switch strings.ToLower(fmt.Sprint(value)) {
			case "true", "yes", "on", "1", "enabled":
				all = append(all, true)
			case "false", "no", "off", "0", "disabled":
				all = append(all, false)
			}
		case f.Form == policy.Duration:
			all = append(all, convertToDurations(fmt.Sprint(value))...)
		case !isText:
		case f.Form == policy.Method:
			upper := strings.ToUpper(text)
			all = append(all, spelling.Nearest(upper, policy.Methods()))
		case f.Form == policy.Path:
			path, _, _ := strings.Cut(text, "?")
			all = append(all, policy.CanonicalPath("/"+path))
		case f.Form == policy.RuleName:
			all = append(all, strings.NewReplacer(" ", "-", ".", "-", "/", "-").Replace(strings.ToLower(text)))
		case f.Form == policy.Domain:
			host := strings.ToLower(text[strings.LastIndexByte(text, '/')+1:])
			if name, port, found := strings.Cut(host, ":"); found && strings.Trim(port, "0123456789") == "" {
				host = name
			}
			all = append(all, strings.TrimSuffix(host, "."))
		case f.Form == policy.Language:
			all = append(all, strings.ReplaceAll(text, "_", "-"))
		case f.Form == policy.Header:
			all = append(all, strings.Trim(text, ": "))
		}
	}
	return all
}

func firstOf(all []any, otherwise any) any {
	if len(all) > 0 && all[0] != "" {
		return all[0]
	}
	return otherwise
}

// convertToObjects returns objects that a value may mean.
func convertToObjects(f *policy.Field, value any) (all []any) {
	switch v := value.(type) {
	case nil:
		return []any{map[string]any{}}
	case bool:
		if v {
			return []any{map[string]any{}}
		}
	case []any:
		if len(v) == 0 {
			return []any{map[string]any{}}
		}
		for i := range f.Fields {
			if f.Fields[i].Form == policy.List {
				all = append(all, map[string]any{f.Fields[i].Name: v})
			}
		}
	case string:
		switch strings.ToLower(v) {
		case "", "true", "yes", "on", "required", "require", "enabled":
			return []any{map[string]any{}}
		case "false", "no", "off", "none", "disabled":
			return nil
		}
		for i := range f.Fields {
			switch form := f.Fields[i].Form; {
			case form == policy.Flag && isSameName(v, f.Fields[i].Name, otherNames):
				all = append([]any{map[string]any{f.Fields[i].Name: true}}, all...)
			case form == policy.Path && (f.Fields[i].Name == "prefix") == strings.HasSuffix(v, "/"),
				form == policy.Text, form == policy.Header:
				all = append(all, map[string]any{f.Fields[i].Name: v})
			}
		}
	}
	return all
}

// convertToWords returns the field's words that a text may mean.
func convertToWords(f *policy.Field, text string) (all []any) {
	if text == "would_deny" {
		return []any{"deny"} // no trial of the default here
	}
	for _, word := range f.Words {
		if isSameName(text, word, otherWords) {
			all = append(all, word)
		}
	}
	if near := spelling.Nearest(text, f.Words); near != "" {
		all = append(all, near)
	}
	return all
}

var (
	durationText = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) *([a-zA-Z]*)$`)
	units        = map[string]time.Duration{"": time.Second, "ms": time.Millisecond, "msec": time.Millisecond,
		"millisecond": time.Millisecond, "s": time.Second, "sec": time.Second, "second": time.Second, "m": time.Minute,
		"min": time.Minute, "minute": time.Minute, "h": time.Hour, "hr": time.Hour, "hour": time.Hour, "d": 24 * time.Hour,
		"day": 24 * time.Hour}
)

// convertToDurations returns the duration that a number, with or without unit, may mean.
func convertToDurations(text string) []any {
	found := durationText.FindStringSubmatch(strings.TrimSpace(text))
	if found == nil {
		return nil
	}
	unit := strings.ToLower(found[2])
	if len(unit) > 2 {
		unit = strings.TrimSuffix(unit, "s")
	}
	each, known := units[unit]
	n, err := time.ParseDuration(found[1] + "s")
	if !known || err != nil {
		return nil
	}
	d := time.Duration(n.Seconds() * float64(each)).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(d, zero) {
			d = strings.TrimSuffix(d, zero[1:])
		}
	}
	return []any{d}
}

// Advise returns advice about a field of rules, "" if the finding's kind has better advice.
func (r *Rules) Advise(field string) string {
	at, whole := r.At.At(field)
	if !whole || at.key == nil {
		return ""
	}
	beside, f, value := r.describeField(field)
	if f != nil {
		for ; f != nil; f = f.Or {
			text, _ := value.(string)
			if f.Form == policy.Object && (value == false || slices.Contains([]string{"false", "no", "off", "none"}, text)) {
				return "remove the field, if this shall not be done"
			}
		}
		return ""
	}
	name := at.key.Value
	for i := range beside { // an object of the rules with a field of this name
		for _, f := range fieldsIn(&beside[i]) {
			if isSameName(name, f.Name, otherNames) {
				return fmt.Sprintf("move it into %s: %s: {%s: …}", beside[i].Name, beside[i].Name, f.Name)
			}
		}
	}
	for _, no := range unknownFields {
		if slices.ContainsFunc(no.names, func(other string) bool { return normalizeName(other) == normalizeName(name) }) {
			return no.advice
		}
	}
	return ""
}
