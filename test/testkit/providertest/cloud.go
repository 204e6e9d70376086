package providertest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gpuaas/gpuaas/internal/providers/recorder"
	"github.com/gpuaas/gpuaas/schema/machine"
)

// A Cloud is the HTTP API of an invented cloud, Acme, in front of a site in memory. The adapter of
// docs/howto/add-a-provider.md uses it.
type Cloud struct {
	Site   *recorder.Site
	Faults *Faults
	// URL is the API's address. A request needs the key Secret.
	URL string
}

// acmeVM is a machine in the API.
type acmeVM struct {
	ID, Owner, Host, Region, Type, Image, Note string
	Status                                     machine.Phase
	UserData                                   []byte
}

// NewCloud starts a cloud without machines, which ends with the test.
func NewCloud(t *testing.T) *Cloud {
	t.Helper()
	c := &Cloud{Site: &recorder.Site{}, Faults: &Faults{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /machines", c.create)
	mux.HandleFunc("GET /machines", c.find)
	mux.HandleFunc("DELETE /machines", c.delete)
	mux.HandleFunc("POST /machines/{id}/power", c.power)
	mux.HandleFunc("GET /machines/{id}/console", c.console)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(c.Faults.Clear)
	c.URL = server.URL
	return c
}

// serve runs one request behind the faults. The texts of errors echo the key, as some clouds do.
func (c *Cloud) serve(w http.ResponseWriter, r *http.Request, method string, changes bool, do func() (status int, body any)) {
	if r.Header.Get("Authorization") != "Bearer "+Secret {
		http.Error(w, "wrong key", http.StatusUnauthorized)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // only then the end of the connection ends the context
	var status int
	var body any
	err := c.Faults.Gate(r.Context(), method, changes, func() { status, body = do() })
	switch {
	case err == nil:
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the client may have ended the request
	case errors.Is(err, ErrGarbage):
		_, _ = w.Write([]byte("<html>" + Secret))
	case statusOf(err) != 0:
		http.Error(w, "rejected for key "+Secret, statusOf(err))
	default:
		panic(http.ErrAbortHandler) // closes the connection
	}
}

// statusOf returns the status of a fault that is an answer, or 0.
func statusOf(err error) int {
	for reason, status := range map[string]int{
		machine.ReasonAuth: http.StatusUnauthorized, machine.ReasonQuota: http.StatusPaymentRequired,
		machine.ReasonCapacity: http.StatusInsufficientStorage, machine.ReasonUnavailable: http.StatusServiceUnavailable,
	} {
		if machine.Is(err, reason) {
			return status
		}
	}
	return 0
}

func (c *Cloud) create(w http.ResponseWriter, r *http.Request) {
	var v acmeVM
	if json.NewDecoder(r.Body).Decode(&v) != nil || v.Owner == "" {
		http.Error(w, "a machine needs an owner", http.StatusBadRequest)
		return
	}
	c.serve(w, r, "create", true, func() (int, any) {
		return http.StatusOK, shown(c.Site.Add(recorder.Record{Owner: v.Owner, Host: v.Host, Region: v.Region, Type: v.Type}))
	})
}

// find lists the machines, of one owner if the query has one.
func (c *Cloud) find(w http.ResponseWriter, r *http.Request) {
	owner, method := r.FormValue("owner"), "list"
	if r.URL.Query().Has("owner") {
		method = "describe"
	}
	c.serve(w, r, method, false, func() (int, any) {
		found := []acmeVM{}
		for _, m := range c.Site.All() {
			if method == "list" || m.Owner == owner {
				found = append(found, shown(m))
				c.Site.Advance(m.ID)
			}
		}
		return http.StatusOK, found
	})
}

func (c *Cloud) delete(w http.ResponseWriter, r *http.Request) {
	owner := r.FormValue("owner")
	c.serve(w, r, "delete", true, func() (int, any) {
		if m, ok := c.Site.Owned(owner); ok {
			c.Site.Change(m.ID, func(r *recorder.Record) { r.Phase = machine.Deleting })
		} else {
			c.Site.RemoveDisk(owner)
		}
		return http.StatusOK, nil
	})
}

func (c *Cloud) power(w http.ResponseWriter, r *http.Request) {
	var change machine.Power
	err := json.NewDecoder(r.Body).Decode(&change)
	phase := map[machine.Power]machine.Phase{machine.PowerOn: machine.Running, machine.PowerOff: machine.Stopped, machine.PowerReset: machine.Running}[change]
	if err != nil || phase == "" {
		http.Error(w, "there is no such change", http.StatusBadRequest)
		return
	}
	c.serve(w, r, "power", true, func() (int, any) {
		if !c.Site.Change(r.PathValue("id"), func(r *recorder.Record) { r.Phase = phase }) {
			return http.StatusNotFound, nil
		}
		return http.StatusOK, nil
	})
}

func (c *Cloud) console(w http.ResponseWriter, r *http.Request) {
	c.serve(w, r, "console", false, func() (int, any) {
		m, _ := c.Site.Get(r.PathValue("id"))
		return http.StatusOK, m.Console
	})
}

func shown(r recorder.Record) acmeVM {
	return acmeVM{ID: r.ID, Owner: r.Owner, Host: r.Host, Region: r.Region, Type: r.Type, Status: r.Phase, Note: r.Detail}
}
