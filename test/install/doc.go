// Package install types docs/install.md on two machines that run systemd, and checks what is left
// after the last step. It contains only tests, and most work on Linux only.
//
// It needs bin/ (./task build), the Debian packages of the programs in dist/, and the programs of
// tools/need.sh install. ./task install-test provides them. With -short only the form of the page
// is checked.
package install
