package console

import (
	"net/url"
	"strings"
)

// pageRows is the number of rows on one page of a list.
const pageRows = "100"

// filter are the filters of a list by name, as its page shows them. The address of the page has them,
// so that it is the saved view.
type filter map[string]string

// filterOf returns the filters with the names that have a value.
func filterOf(value func(name string) string, names ...string) filter {
	f := filter{}
	for _, name := range names {
		if v := strings.TrimSpace(printable(value(name))); v != "" {
			f[name] = v
		}
	}
	return f
}

func (f filter) values() url.Values {
	q := url.Values{}
	for name, value := range f {
		q.Set(name, value)
	}
	return q
}

// query returns the parameters of the admin API for the page of the list that the request asks for.
func (f filter) query(r *request) url.Values {
	q := f.values()
	q.Set("limit", pageRows)
	if token := r.URL.Query().Get("page_token"); token != "" {
		q.Set("page_token", token)
	}
	return q
}

// next returns the address of the page with the token, empty for none.
func (f filter) next(r *request, token string) string {
	if token == "" {
		return ""
	}
	q := f.values()
	q.Set("page_token", token)
	return r.URL.Path + "?" + q.Encode()
}
