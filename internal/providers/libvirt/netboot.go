package libvirt

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

// The path of iPXE on Debian (package ipxe), in the form of a Linux kernel.
const defaultIPXE = "/usr/lib/ipxe/ipxe.lkrn"

// scriptFile is the file of the HTTP server with the commands of iPXE.
const scriptFile = "boot.ipxe"

// netboot makes the domain start iPXE, which QEMU loads in place of the kernel, and whose script
// is its command line. iPXE loads the image from this host: 10.0.2.2 is 127.0.0.1 there. If a
// request fails, the machine restarts until BootTimeout, and its console shows why.
func (o *osXML) netboot(ipxe string, port int) {
	o.Kernel, o.Initrd, o.BIOS = ipxe, "", &biosXML{"yes"}
	o.CmdLine = fmt.Sprintf("dhcp && chain http://10.0.2.2:%d/%s || sleep 5 && reboot", port, scriptFile)
}

// ImageServer serves the image of machines that boot over HTTP: a script of iPXE, the kernel and
// the initramfs in the folder. The three files are public, and GET and HEAD are the only methods.
// It reads a file for each request, so that a new image needs no restart.
func ImageServer(folder string) *http.Server {
	f := files{image: folder}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /"+scriptFile, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintf(w, "#!ipxe\nkernel %s initrd=%s %s\ninitrd %[2]s\nboot\n", KernelFile, InitramfsFile, cmdLine) // the client may have left
	})
	mux.Handle("GET /"+KernelFile, serveFile(f.kernel()))
	mux.Handle("GET /"+InitramfsFile, serveFile(f.initramfs()))
	return &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 5 * time.Minute, MaxHeaderBytes: 8 << 10}
}

func serveFile(path string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		file, err := os.Open(path)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer file.Close() //nolint:errcheck // only read
		info, err := file.Stat()
		if err != nil || !info.Mode().IsRegular() {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("ETag", fmt.Sprintf("\"%x-%x\"", info.ModTime().UnixNano(), info.Size()))
		http.ServeContent(w, r, "", info.ModTime(), file)
	}
}
