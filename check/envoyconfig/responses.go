package envoyconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gatehouse/gatehouse/check/findings"
	"github.com/gatehouse/gatehouse/check/samples"
	"github.com/gatehouse/gatehouse/edge/policy"
	"github.com/gatehouse/gatehouse/internal/envoyrules"
)

// The edge answers by local replies. Envoy passes local replies through local_reply_config and through all filters of
// the connection manager, also those before Gatehouse's.

// checkResponses checks that the configuration leaves the edge's answers unchanged.
func (a *analysis) checkResponses(p *plugin) {
	answers := p.possibleAnswers()
	if answers == nil {
		return
	}
	checks := answerChecks{a, p, answers}
	checks.checkLocalReplies()
	levels := map[string]bool{}
	for _, rt := range a.answeredRoutes(p) {
		for _, l := range rt.levels {
			if name := headerAddedBy(l.config); name != "" && !levels[l.at] {
				levels[l.at] = true
				a.add(&addsHeader, p.ListenerName(), l.at+".response_headers_to_add",
					"adds %s to answers from the cache, too, which have one: clients get both", name)
			}
		}
	}
	for i, filter := range p.Filters {
		if i != p.Index {
			checks.checkOtherFilter(i, a.WithDiscovered(filter))
		}
	}
}

// answerChecks checks what the configuration does to the answers of an edge.
type answerChecks struct {
	*analysis
	p       *plugin
	answers []answer
}

// answer is a possible answer of an edge.
type answer struct {
	status int
	body   bool // the body is an object or a token; without body only status and headers matter
	cached bool // the answer has Cache-Status
}

// possibleAnswers returns the possible answers of an edge, except 503: clients retry a 503 whatever its content.
func (p *plugin) possibleAnswers() (all []answer) {
	if p.hasCacheRules() {
		for _, status := range []int{200, 206, 301, 302, 304, 307, 308, 404, 410, 416} {
			all = append(all, answer{status, true, true})
		}
	}
	if p.auth {
		all = append(all, answer{401, false, false}, answer{403, false, false})
	}
	if slices.ContainsFunc(p.Rules.Rules, func(r policy.Rule) bool { return r.IssueSession }) {
		all = append(all, answer{200, true, false})
	}
	return all
}

func (p *plugin) hasCacheRules() bool {
	return slices.ContainsFunc(p.Rules.Rules, func(r policy.Rule) bool { return r.Cache != nil })
}

// answeredRoutes returns the routes of requests that the edge may answer.
func (a *analysis) answeredRoutes(p *plugin) []httpRoute {
	return slices.DeleteFunc(a.judgedRoutes(p), func(rt httpRoute) bool {
		return !slices.ContainsFunc(rt.Rules.Own(), func(r policy.Rule) bool {
			return (r.Cache != nil || r.NeedsCredential()) && slices.ContainsFunc(samples.PathsOf(&r.Match), rt.Takes)
		})
	})
}

// describingHeaderIn returns a header in HeaderValueOptions that describes an answer, "" for none. Appending to Vary is
// harmless.
func describingHeaderIn(options []object) string {
	for _, option := range options {
		name, action := option.Object("header").Text("key"), option.Text("append_action")
		appends := action == "" || action == "APPEND_IF_EXISTS_OR_ADD" || action == "ADD_IF_ABSENT"
		if findings.DescribesAnswer(name) && !(appends && strings.EqualFold(name, "vary")) {
			return name
		}
	}
	return ""
}

// headerAddedBy returns a header that describes an answer and that a level of a route adds to the edge's answers, ""
// for none. Envoy adds headers before the edge answers: OVERWRITE_IF_EXISTS overwrites nothing, and notes in filter
// state are empty.
func headerAddedBy(level object) string {
	return describingHeaderIn(slices.DeleteFunc(level.List("response_headers_to_add"), func(option object) bool {
		h := option.Object("header")
		return strings.EqualFold(h.Text("key"), "vary") || option.Text("append_action") == "OVERWRITE_IF_EXISTS" ||
			strings.Contains(h.Text("value"), "%FILTER_STATE(wasm.gatehouse_")
	}))
}

// checkLocalReplies checks that local_reply_config leaves answers unchanged.
func (c *answerChecks) checkLocalReplies() {
	config := c.p.Manager.Object("local_reply_config")
	seen := map[string]bool{}
	report := func(at, what string, reply answer) {
		if !seen[at] {
			seen[at] = true
			c.add(&rewrites, c.p.ListenerName(), "local_reply_config."+at, "%s of Gatehouse's answers, such as a %d", what,
				reply.status)
		}
	}
	mappers := config.List("mappers")
	for _, reply := range c.answers {
		formatted := config.Has("body_format") && !keepsBody(config.Object("body_format"))
		for i, mapper := range mappers {
			takes := matchReply(mapper.Object("filter"), reply)
			if takes == never {
				continue
			}
			at := fmt.Sprintf("mappers[%d]", i)
			override := mapper.Has("body_format_override")
			if mapper.Has("status_code") && int(mapper.Number("status_code", 0)) != reply.status {
				report(at, "changes the status", reply)
			} else if describingHeaderIn(mapper.List("headers_to_add")) != "" {
				report(at, "changes headers", reply)
			} else if reply.body && (mapper.Has("body") || override && !keepsBody(mapper.Object("body_format_override"))) {
				report(at, "replaces the body, but not entity-tag, encoding and range,", reply)
			}
			if takes == always {
				formatted = formatted && !override
				break
			}
		}
		if reply.body && formatted {
			report("body_format", "replaces the body, but not entity-tag, encoding and range,", reply)
		}
	}
}

// keepsBody reports whether a local reply's format keeps the body.
func keepsBody(format object) bool {
	return format.Text("text_format")+format.Object("text_format_source").Text("inline_string") == "%LOCAL_REPLY_BODY%"
}

// certainty says for how many requests a condition holds.
type certainty uint8

const (
	never certainty = iota
	sometimes
	always
)

// matchReply says whether a mapper's filter (an access log filter) selects an answer.
func matchReply(filter object, reply answer) certainty {
	switch {
	case filter.Has("status_code_filter"):
		return compareStatus(filter.Object("status_code_filter").Object("comparison"), reply.status)
	case filter.Has("response_flag_filter"):
		return never // replies of a filter have no response flag
	case filter.Has("not_health_check_filter"):
		return always
	case filter.Has("and_filter"):
		all := always
		for _, part := range filter.Object("and_filter").List("filters") {
			all = min(all, matchReply(part, reply))
		}
		return all
	case filter.Has("or_filter"):
		any := never
		for _, part := range filter.Object("or_filter").List("filters") {
			any = max(any, matchReply(part, reply))
		}
		return any
	case filter.Has("extension_filter"):
		_, config := filter.Object("extension_filter").Object("typed_config").Typed()
		return matchExpression(config.Text("expression"), reply)
	}
	return sometimes
}

func compareStatus(comparison object, status int) certainty {
	value := int(comparison.Object("value").Number("default_value", 0))
	holds := false
	switch comparison.Text("op") {
	case "GE":
		holds = status >= value
	case "LE":
		holds = status <= value
	case "NE":
		holds = status != value
	default:
		holds = status == value
	}
	if holds {
		return always
	}
	return never
}

// matchExpression evaluates the expressions that docs/requests.md recommends; others count as sometimes.
func matchExpression(expression string, reply answer) certainty {
	expression = strings.ReplaceAll(strings.Join(strings.Fields(expression), ""), `"`, "'")
	const cached = "'cache-status'inresponse.headers"
	holds := false
	switch expression {
	case cached:
		holds = reply.cached
	case "!(" + cached + ")":
		holds = !reply.cached
	case "response.code<400||" + cached:
		holds = reply.cached || reply.status < 400
	case "!(response.code<400||" + cached + ")":
		holds = !reply.cached && reply.status >= 400
	default:
		return sometimes
	}
	if holds {
		return always
	}
	return never
}

// checkOtherFilter checks a filter of the connection manager other than Gatehouse's.
func (c *answerChecks) checkOtherFilter(i int, filter object) {
	routes := c.answeredRoutes(c.p)
	_, base := filter.Object("typed_config").Typed()
	at := fmt.Sprintf("http_filters[%d]", i)
	off := filter.Flag("disabled")
	if len(routes) == 0 && !off {
		c.reportAlterations(i, at, filter.Field("typed_config"))
		return
	}
	name := filter.Text("name")
	seen := map[string]bool{}
	for _, rt := range routes {
		off, ownAt, own := off, "", object(nil)
		for _, l := range rt.levels {
			per := l.config.Object("typed_per_filter_config").Object(name)
			if kind, config := per.Typed(); envoyrules.IsType(kind, perFilterType) {
				off = config.Flag("disabled")
				per = config.Object("config")
			} else if per != nil {
				off = config.Flag("disabled")
			}
			if per != nil {
				ownAt, own = l.at+".typed_per_filter_config."+name, per
			}
		}
		if off {
			continue
		}
		kind, _ := own.Typed()
		if !seen[at] && (own == nil || !strings.HasSuffix(kind, "LuaPerRoute")) {
			seen[at] = true
			c.reportAlterations(i, at, map[string]any(base))
		}
		if own != nil && !seen[ownAt] {
			seen[ownAt] = true
			c.reportAlterations(i, ownAt, map[string]any(own))
		}
	}
}

const (
	filterTypes   = "envoy.extensions.filters.http."
	perFilterType = "envoy.config.route.v3.FilterConfig"
	customType    = filterTypes + "custom_response.v3.CustomResponse"
)

// reportAlterations reports answers that a filter's configuration, or a nested filter's, changes.
func (c *answerChecks) reportAlterations(i int, at string, v any) {
	envoyrules.VisitObjects(v, func(o object) bool {
		kind, message := o.Typed()
		if name, found := strings.CutPrefix(kind[strings.LastIndexByte(kind, '/')+1:], filterTypes); found {
			c.reportAlteration(name, i < c.p.Index, at, message)
		}
		return !envoyrules.IsType(kind, customType)
	})
}

func (c *answerChecks) reportAlteration(name string, before bool, at string, o object) {
	content := func(format string, args ...any) {
		c.add(&changesAnswer, c.p.ListenerName(), at, format, args...)
	}
	header := func(name string) {
		if name != "" {
			c.add(&changesHeader, c.p.ListenerName(), at, "changes %s of Gatehouse's answers", name)
		}
	}
	switch name {
	case "compressor.v3.Compressor", "compressor.v3.CompressorPerRoute":
		direction := o.Object("response_direction_config")
		if overrides := o.Object("overrides"); overrides != nil {
			direction = overrides.Object("response_direction_config")
		}
		if isOff(direction) {
			return
		}
		if direction.Flag("remove_accept_encoding_header") && before && c.p.hasCacheRules() {
			c.add(&losesEncodings, c.p.ListenerName(), at+".response_direction_config.remove_accept_encoding_header",
				"is true: Gatehouse doesn't see what clients accept, and sends no cached answer compressed")
		}
		keeps := direction.Flag("disable_on_etag_header") || o.Flag("disable_on_etag_header")
		keeps = keeps && !direction.Flag("weaken_etag_on_compress")
		if name == "compressor.v3.Compressor" && before && !keeps && c.p.hasCacheRules() {
			content("compresses Gatehouse's answers: a 206 gets parts of other bytes, others lose their entity-tags")
		}
	case "decompressor.v3.Decompressor":
		if !isOff(o.Object("response_direction_config")) && c.p.hasCacheRules() {
			content("decompresses cached answers: clients get more bytes than they ask for, without a strong entity-tag")
		}
	case "custom_response.v3.CustomResponse":
		if status := customResponseStatus(o, c.answers); status != 0 {
			content("replaces answers such as Gatehouse's %d", status)
		}
	case "header_mutation.v3.HeaderMutation", "header_mutation.v3.HeaderMutationPerRoute":
		header(mutatedHeader(o.Object("mutations").List("response_mutations")))
	case "header_to_metadata.v3.Config":
		for _, rule := range o.List("response_rules") {
			if name := rule.Text("header"); rule.Flag("remove") && findings.DescribesAnswer(name) {
				header(name)
			}
		}
	case "lua.v3.Lua", "lua.v3.LuaPerRoute":
		body, name := luaResponseChanges(map[string]any(o))
		if body || name == ":status" {
			content("changes status or body of Gatehouse's answers")
		} else {
			header(name)
		}
	case "cache.v3.CacheConfig", "cache_v2.v3.CacheV2Config":
		if before && c.p.hasCacheRules() && !c.p.auth && !o.Flag("disabled") { // with auth GH0312 says more
			content("keeps Gatehouse's answers: clients get them after they have been replaced or deleted")
		}
	}
}

// isOff reports whether a compressor or decompressor is off in a direction.
func isOff(direction object) bool {
	enabled, found := direction.Object("common_config").Object("enabled").Field("default_value").(bool)
	return found && !enabled
}

// mutatedHeader returns a header that describes answers and is changed by the mutations, "" for none.
func mutatedHeader(mutations []object) string {
	for _, m := range mutations {
		if name := m.Text("remove"); findings.DescribesAnswer(name) {
			return name
		}
		if name := describingHeaderIn([]object{m.Object("append")}); name != "" {
			return name
		}
		matcher := m.Object("remove_on_match").Object("key_matcher")
		for _, name := range findings.DescribingHeaders {
			if matcher != nil && matchesText(matcher, name) {
				return name
			}
		}
	}
	return ""
}

// matchesText reports whether a string matcher may match a text.
func matchesText(m object, text string) bool {
	switch {
	case m.Has("exact"):
		return strings.EqualFold(m.Text("exact"), text)
	case m.Has("prefix"):
		return strings.HasPrefix(text, strings.ToLower(m.Text("prefix")))
	case m.Has("suffix"):
		return strings.HasSuffix(text, strings.ToLower(m.Text("suffix")))
	case m.Has("contains"):
		return strings.Contains(text, strings.ToLower(m.Text("contains")))
	case m.Has("safe_regex"):
		return matchPath(object{"safe_regex": m.Field("safe_regex")}, text)
	}
	return true
}

// customResponseStatus returns the status of an answer that a custom_response matcher may select, 0 for none.
func customResponseStatus(o object, answers []answer) int {
	matcher := o.Object("custom_response_matcher")
	if matcher.Has("matcher_tree") {
		return answers[0].status // the matcher may select any answer
	}
	status := 0
	envoyrules.VisitObjects(map[string]any(matcher), func(o object) bool {
		if !o.Has("on_match") && !o.Has("on_no_match") {
			return true
		}
		predicate := o.Object("predicate").Object("single_predicate")
		kind, _ := predicate.Object("input").Object("typed_config").Typed()
		value := predicate.Object("value_match").Text("exact")
		for _, reply := range answers {
			text := fmt.Sprint(reply.status)
			if strings.HasSuffix(kind, "HttpResponseStatusCodeClassMatchInput") {
				text = text[:1] + "xx"
			} else if !strings.HasSuffix(kind, "HttpResponseStatusCodeMatchInput") {
				text = value
			}
			if text == value || !predicate.Has("value_match") {
				status = reply.status
			}
		}
		return false
	})
	return status
}

// luaResponseChanges returns the changes that Lua code in a configuration makes to responses: whether the code sets the
// body, and a header that the code changes, "" for none.
func luaResponseChanges(v any) (body bool, header string) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			if b, h := luaResponseChanges(item); b || h != "" {
				return b, h
			}
		}
	case map[string]any:
		for _, key := range object(v).Keys() {
			if b, h := luaResponseChanges(v[key]); b || h != "" {
				return b, h
			}
		}
	case string:
		_, code, _ := strings.Cut(v, "envoy_on_response")
		code, _, _ = strings.Cut(code, "envoy_on_request")
		changes := func(name string) bool { return name == ":status" || findings.DescribesAnswer(name) }
		header := headerInLuaCalls(code, []string{":replace(", ":remove("}, changes)
		if header == "" {
			header = headerInLuaCalls(code, []string{":add("}, func(name string) bool {
				return changes(name) && !strings.EqualFold(name, "vary")
			})
		}
		return strings.Contains(code, ":setBytes("), header
	}
	return false, ""
}
