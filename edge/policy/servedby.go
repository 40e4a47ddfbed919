package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/clients/go/objectkey"
)

// ServedBy returns the index of the rule that answers requests with the object at a key; or -1 and the missing rule,
// virtual host or setting. For tools, not for requests.
func (c *Config) ServedBy(key string) (rule int, why string) {
	space, target := objectkey.Split(key)
	device, scope, scoped := strings.Cut(space, "//")
	name, host, _ := strings.Cut(scope, ":")
	target, language, _ := strings.Cut(target, "#")
	path, query, _ := strings.Cut(target, "?")
	at, place := NoVirtualHost, "no rule at the top level"
	if name != "" {
		at = slices.IndexFunc(c.VirtualHosts, func(v VirtualHost) bool { return v.Name == name })
		if place = fmt.Sprintf("no rule of the virtual host %s", name); at < 0 {
			return -1, fmt.Sprintf("there is no virtual host %s", name)
		}
	}
	h := c.HostRules(at)
	rule = h.First
	for rule < h.End && !c.Rules[rule].Match.matches("GET", CanonicalPath(path)) {
		rule++
	}
	if rule == h.End {
		return -1, fmt.Sprintf("%s matches %s", place, path)
	}
	cache := c.Rules[rule].Cache
	title := c.RuleTitle(rule)
	switch {
	case cache == nil:
		why = title + " has no cache"
	case language != "" && cache.Languages == nil:
		why = fmt.Sprintf("%s has no languages: set cache: {languages: [%s]}, or publish without a language", title, language)
	case language != "" && !slices.Contains(cache.Languages, language):
		why = fmt.Sprintf("%s has not %s among its languages, %s", title, language, strings.Join(cache.Languages, ", "))
	case cache.PerDevice && device == "":
		why = title + " has scope device: publish for a device, key @ID/path"
	case !cache.PerDevice && device != "":
		why = title + " has not scope device: set cache: {scope: device}, or publish without a device"
	case cache.PerHost && host == "":
		why = title + " has scope host: publish for a host, key //:HOST/path"
	case !cache.PerHost && host != "":
		why = title + " has not scope host: set cache: {scope: host}, or publish without a host"
	case scoped && host == "" && name == "":
		why = "it names neither a virtual host nor a host"
	}
	for pair := range strings.SplitSeq(query, "&") {
		parameter, _, _ := strings.Cut(pair, "=")
		if why == "" && pair != "" && cache.Query != nil && !slices.Contains(cache.Query, parameter) {
			why = fmt.Sprintf("%s leaves the parameter %s out of keys: add it to cache: {query: […]}, or publish without it",
				title, parameter)
		}
	}
	if why != "" {
		return -1, why
	}
	return rule, ""
}
