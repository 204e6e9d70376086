package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// maxToken bounds the length of a token in bytes.
const maxToken = 16 << 10

func newLogin(e *env) *cobra.Command {
	var file string
	c := e.command("login", "Store a token for a context",
		`Stores a token of the admin API in the configuration file, for the current context or the
one that --context names. The token is read from stdin, or from --token-file. With
--api-url the context is created if it does not exist; its name is then "default" unless
--context sets one. Only the owner can read the file. An address to which the token would
be sent unencrypted is rejected without --insecure-http.`,
		`  gpuaas login --context prod --token-file prod.token
  gpuaas login --api-url https://gpuaas.example.com < token`, func(context.Context, string) error {
			token, err := e.readToken(file)
			if err != nil {
				return err
			}
			if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
				return usagef("gpuaas login", "the input is not a token: it must be one line of printable ASCII characters")
			}
			var name, address string
			err = e.editConfig(func(c *config) error {
				name = cmp.Or(e.flags.context, c.CurrentContext, "default")
				_, found := c.Contexts[name]
				if !found && e.flags.apiURL == "" {
					return usagef("gpuaas login", "missing --api-url: the address of the new context %q", name)
				}
				if e.flags.apiURL != "" {
					if err := c.set(name, e.flags.apiURL, ""); err != nil {
						return err
					}
				}
				v := c.Contexts[name]
				v.Token = token
				c.Contexts[name], address = v, v.APIURL
				return checkPlain("gpuaas login", address, e.flags.insecureHTTP)
			})
			if err == nil {
				e.message("stored the token of context %s in %s (mode 0600)", name, e.configPath())
				e.warnPlain(address)
				warnHidden(e, address)
			}
			return err
		})
	c.Flags().StringVar(&file, "token-file", "", "file that contains the token (default: stdin)")
	return c
}

// warnHidden names the environment variables because of which commands do not use the stored token.
func warnHidden(e *env, address string) {
	if name := e.tokenVariable(); name != "" {
		e.message("warning: %[1]s is set, and commands use its token: unset %[1]s", name)
	}
	if url := e.getenv("GPUAAS_API_URL"); e.flags.context == "" && url != "" && url != address {
		e.message("warning: GPUAAS_API_URL is set to %s, and the token is stored for %s: unset GPUAAS_API_URL", url, address)
	}
}

// readToken reads the token from a file or stdin. A terminal does not echo it.
func (e *env) readToken(file string) (string, error) {
	var text []byte
	var err error
	switch stdin, isFile := e.stdin.(*os.File); {
	case file != "":
		text, err = os.ReadFile(file)
	case isFile && e.tty.in:
		fmt.Fprint(e.stderr, "Token: ")
		text, err = term.ReadPassword(int(stdin.Fd()))
		fmt.Fprintln(e.stderr)
	default:
		text, err = io.ReadAll(io.LimitReader(e.stdin, maxToken+2))
	}
	if err != nil {
		return "", usagef("gpuaas login", "reading the token: %s", err)
	}
	return strings.TrimSpace(string(text)), nil
}
