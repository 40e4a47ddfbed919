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

// lexer reads the tokens of a file like nginx (ngx_conf_read_token), and blocks of Lua like lua-nginx-module.
type lexer struct {
	text string
	pos  int
	line int // line of the byte at pos
}

var errEnd = errors.New("ends within a directive or block")

func (l *lexer) nextByte() byte {
	c := l.text[l.pos]
	l.pos++
	if c == '\n' {
		l.line++
	}
	return c
}

func (l *lexer) atEnd() bool { return l.pos >= len(l.text) }

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// skipSpace skips white space and comments.
func (l *lexer) skipSpace() {
	for !l.atEnd() {
		switch c := l.text[l.pos]; {
		case isSpace(c):
			l.nextByte()
		case c == '#':
			l.skipLine()
		default:
			return
		}
	}
}

func (l *lexer) skipLine() {
	for !l.atEnd() && l.text[l.pos] != '\n' {
		l.nextByte()
	}
}

// readWords reads the words of a directive and the end: ';', '{', '}' or 0 for the end of the file. No words precede
// '}' and 0.
func (l *lexer) readWords() (words []string, end byte, err error) {
	for {
		l.skipSpace()
		if l.atEnd() {
			if len(words) > 0 {
				return nil, 0, errEnd
			}
			return nil, 0, nil
		}
		switch c := l.text[l.pos]; c {
		case ';', '{', '}':
			l.nextByte()
			if (c == '}') != (len(words) == 0) {
				return nil, 0, fmt.Errorf("unexpected %q", c)
			}
			return words, c, nil
		case '"', '\'':
			word, err := l.readQuoted()
			if err != nil {
				return nil, 0, err
			}
			words = append(words, word)
		default:
			words = append(words, l.readWord())
		}
	}
}

// readWord reads a word without quotes. A brace ends a word, except in "${".
func (l *lexer) readWord() string {
	var b strings.Builder
	variable := false
	for !l.atEnd() {
		c := l.text[l.pos]
		if isSpace(c) || c == ';' || c == '{' && !variable {
			break
		}
		l.nextByte()
		if c == '\\' && !l.atEnd() {
			b.WriteString(unescape(l.nextByte()))
			variable = false
			continue
		}
		variable = c == '$'
		b.WriteByte(c)
	}
	return b.String()
}

// readQuoted reads a word in quotes.
func (l *lexer) readQuoted() (string, error) {
	var b strings.Builder
	quote := l.nextByte()
	for !l.atEnd() {
		switch c := l.nextByte(); {
		case c == '\\' && !l.atEnd():
			b.WriteString(unescape(l.nextByte()))
		case c != quote:
			b.WriteByte(c)
		case l.atEnd() || isSpace(l.text[l.pos]) || strings.IndexByte(";{)", l.text[l.pos]) >= 0:
			return b.String(), nil
		default:
			return "", fmt.Errorf("unexpected %q after a quote", l.text[l.pos])
		}
	}
	return "", errEnd
}

// unescape returns nginx's reading of a backslash and c: nginx keeps the backslash before most characters.
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

// readLua reads a block of Lua from behind '{' to the matching '}'.
func (l *lexer) readLua() (string, error) {
	start := l.pos
	for depth := 1; !l.atEnd(); {
		switch c := l.nextByte(); c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return l.text[start : l.pos-1], nil
			}
		case '"', '\'':
			l.skipLuaString(c)
		case '[':
			l.skipLongBracket()
		case '-':
			l.skipLuaComment()
		}
	}
	return "", errEnd
}

// parseLua reads Lua. Comment signs within a text begin no comment.
func parseLua(code string) (out luaCode) {
	var plain, bare strings.Builder
	for l := (&lexer{text: code}); !l.atEnd(); {
		start, text := l.pos, ""
		isText := false
		switch c := l.nextByte(); c {
		case '"', '\'':
			l.skipLuaString(c)
			text, isText = strings.TrimSuffix(code[start+1:l.pos], string(c)), true
		case '[':
			if isText = l.skipLongBracket(); isText {
				text = strings.Trim(code[start:l.pos], "[]=")
			}
		case '-':
			if l.skipLuaComment() {
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
	out.code, out.masked = plain.String(), bare.String()
	return out
}

// skipLuaComment skips a comment whose first '-' is read, and reports whether the text is a comment.
func (l *lexer) skipLuaComment() bool {
	if l.atEnd() || l.text[l.pos] != '-' {
		return false
	}
	l.nextByte()
	if l.atEnd() || l.text[l.pos] != '[' || !l.skipBracketComment() {
		l.skipLine()
	}
	return true
}

func (l *lexer) skipLuaString(quote byte) {
	for !l.atEnd() {
		switch l.nextByte() {
		case '\\':
			if !l.atEnd() {
				l.nextByte()
			}
		case quote:
			return
		}
	}
}

func (l *lexer) skipBracketComment() bool {
	l.nextByte()
	return l.skipLongBracket()
}

// skipLongBracket skips a string or comment like [[ ]] or [==[ ]==] whose first '[' is read, and reports whether the
// text is a long bracket.
func (l *lexer) skipLongBracket() bool {
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
		l.nextByte()
	}
	return true
}
