// Package envfile reads and changes systemd environment files.
package envfile
