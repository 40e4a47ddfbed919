package nginxconfig

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The library nginx-go-crossplane isn't used: its lexer doesn't know comments and escapes in Lua, and takes what
// follows "access_by_lua_block{" without a space for the content of that block. An analysis that misreads a file
// misses bypasses.

// lexer reads the tokens of a file as nginx does (ngx_conf_read_token), and blocks of Lua as lua-nginx-module does.
type lexer struct {
	text string
	pos  int
	line int // of the byte at pos
}

var errEnd = errors.New("ends within a directive or block")

func (l *lexer) next() byte {
	c := l.text[l.pos]
	l.pos++
	if c == '\n' {
		l.line++
	}
	return c
}

func (l *lexer) done() bool { return l.pos >= len(l.text) }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// skip skips white space and comments.
func (l *lexer) skip() {
	for !l.done() {
		switch c := l.text[l.pos]; {
		case isSpace(c):
			l.next()
		case c == '#':
			l.skipLine()
		default:
			return
		}
	}
}

func (l *lexer) skipLine() {
	for !l.done() && l.text[l.pos] != '\n' {
		l.next()
	}
}

// words reads the words of a directive, and what ends it: ';', '{', or '}' and the end of the file, before which there
// are no words.
func (l *lexer) words() (words []string, end byte, err error) {
	for {
		l.skip()
		if l.done() {
			if len(words) > 0 {
				return nil, 0, errEnd
			}
			return nil, 0, nil
		}
		switch c := l.text[l.pos]; c {
		case ';', '{', '}':
			l.next()
			if (c == '}') != (len(words) == 0) {
				return nil, 0, fmt.Errorf("unexpected %q", c)
			}
			return words, c, nil
		case '"', '\'':
			word, err := l.quoted()
			if err != nil {
				return nil, 0, err
			}
			words = append(words, word)
		default:
			words = append(words, l.word())
		}
	}
}

// word reads a word without quotes. "${" doesn't end it, as another brace does.
func (l *lexer) word() string {
	var b strings.Builder
	variable := false
	for !l.done() {
		c := l.text[l.pos]
		if isSpace(c) || c == ';' || c == '{' && !variable {
			break
		}
		l.next()
		if c == '\\' && !l.done() {
			b.WriteString(unescape(l.next()))
			variable = false
			continue
		}
		variable = c == '$'
		b.WriteByte(c)
	}
	return b.String()
}

// quoted reads a word in quotes.
func (l *lexer) quoted() (string, error) {
	var b strings.Builder
	quote := l.next()
	for !l.done() {
		switch c := l.next(); {
		case c == '\\' && !l.done():
			b.WriteString(unescape(l.next()))
		case c != quote:
			b.WriteByte(c)
		case l.done() || isSpace(l.text[l.pos]) || strings.IndexByte(";{)", l.text[l.pos]) >= 0:
			return b.String(), nil
		default:
			return "", fmt.Errorf("unexpected %q after a quote", l.text[l.pos])
		}
	}
	return "", errEnd
}

// unescape returns what nginx makes of a backslash and c: it keeps the backslash before most characters.
func unescape(c byte) string {
	switch c {
	case '"', '\'', '\\':
		return string(c)
	case 't':
		return "\t"
	case 'r':
		return "\r"
	case 'n':
		return "\n"
	}
	return `\` + string([]byte{c})
}

// lua reads a block of Lua after its '{', up to the '}' that ends it.
func (l *lexer) lua() (string, error) {
	start := l.pos
	for depth := 1; !l.done(); {
		switch c := l.next(); c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return l.text[start : l.pos-1], nil
			}
		case '"', '\'':
			l.luaString(c)
		case '[':
			l.longBracket()
		case '-':
			l.luaComment()
		}
	}
	return "", errEnd
}

// parseLua reads Lua. A text may have what looks like a comment.
func parseLua(code string) (out lua) {
	var plain, bare strings.Builder
	for l := (&lexer{text: code}); !l.done(); {
		start, text := l.pos, ""
		isText := false
		switch c := l.next(); c {
		case '"', '\'':
			l.luaString(c)
			text, isText = strings.TrimSuffix(code[start+1:l.pos], string(c)), true
		case '[':
			if isText = l.longBracket(); isText {
				text = strings.Trim(code[start:l.pos], "[]=")
			}
		case '-':
			if l.luaComment() {
				plain.WriteByte(' ')
				bare.WriteByte(' ')
				continue
			}
		}
		plain.WriteString(code[start:l.pos])
		if isText {
			fmt.Fprintf(&bare, "%q", strconv.Itoa(len(out.texts)))
			out.texts = append(out.texts, text)
		} else {
			bare.WriteString(code[start:l.pos])
		}
	}
	out.code, out.bare = plain.String(), bare.String()
	return out
}

// luaComment skips the rest of a comment, of which '-' was read, and reports whether it is one.
func (l *lexer) luaComment() bool {
	if l.done() || l.text[l.pos] != '-' {
		return false
	}
	l.next()
	if l.done() || l.text[l.pos] != '[' || !l.longBracketAfter() {
		l.skipLine()
	}
	return true
}

func (l *lexer) luaString(quote byte) {
	for !l.done() {
		switch l.next() {
		case '\\':
			if !l.done() {
				l.next()
			}
		case quote:
			return
		}
	}
}

func (l *lexer) longBracketAfter() bool {
	l.next()
	return l.longBracket()
}

// longBracket skips the rest of a string or comment like [[ ]] or [==[ ]==], of which '[' was read, and reports whether
// it is one.
func (l *lexer) longBracket() bool {
	rest := l.text[l.pos:]
	level := len(rest) - len(strings.TrimLeft(rest, "="))
	if level == len(rest) || rest[level] != '[' {
		return false
	}
	end := strings.Index(rest, "]"+rest[:level]+"]")
	if end < 0 {
		end = len(rest) - level - 2
	}
	for range end + level + 2 {
		l.next()
	}
	return true
}
