// Package spelling finds the word that a misspelt word probably means.
package spelling

// Nearest returns the word with the least distance from text, at most a third of the letters; "" for none.
func Nearest(text string, words []string) string {
	best, least := "", len(text)/3+1
	if len(text) > 3 {
		least = max(least, 3)
	}
	for _, word := range words {
		if d := distance(text, word); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance returns the number of letters to insert, remove, change or swap with a neighbour to turn a into b.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case a[i-1] == b[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
