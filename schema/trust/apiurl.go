package trust

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/gpuaas/gpuaas/schema/text"
)

// CheckAPIURL requires a URL of the node API to be https://name or https://name:port.
// A raw IP address is rejected, also that of the loopback interface: the certificate of
// the name authenticates the server before it receives a token, and a route by address
// does not lead to the node API. The server checks its setting and the agent its
// configuration with this function, so that no bundle contains a URL that agents reject.
func CheckAPIURL(raw string) error {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		return errors.New("is not set")
	case err != nil:
		return errors.New("is not a URL")
	case u.Scheme != "https":
		return fmt.Errorf("must start with https://, not %q", u.Scheme)
	case u.User != nil || u.Path != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("must be https://name or https://name:port and nothing else")
	case text.IsIP(u.Hostname()):
		return errors.New("must contain a host name: a raw IP address does not route to the node API")
	case !text.IsDNSName(u.Hostname()):
		return errors.New("must contain a host name of letters, digits, hyphens and dots that does not end in a number")
	}
	if port, err := strconv.ParseUint(u.Port(), 10, 16); u.Host != u.Hostname() && (err != nil || port == 0) {
		return errors.New("must have a port of 1 to 65535")
	}
	if want := "https://" + u.Host; raw != want {
		return fmt.Errorf("must be spelled %s", want)
	}
	return nil
}
