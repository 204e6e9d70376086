package browsertest

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gpuaas/gpuaas/test/testkit/stacktest"
)

// MaxScreenshot bounds the size of a screenshot, because docs/images is in the repository.
const MaxScreenshot = 150 << 10

// Screenshot stores a picture of the element that matches a selector as NAME.png in a folder, which is
// relative to the root of the repository. Without a folder it does nothing.
func (p *Page) Screenshot(folder, name, selector string) {
	p.T.Helper()
	if folder == "" {
		return
	}
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(stacktest.Root, folder)
	}
	picture := p.picture(selector)
	require.Less(p.T, len(picture), MaxScreenshot, name)
	require.NoError(p.T, os.MkdirAll(folder, 0o755))
	require.NoError(p.T, os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o644))
}

// picture is a picture of the element that matches a selector, in PNG with at most 256 colors.
func (p *Page) picture(selector string) []byte {
	p.T.Helper()
	box := Evaluate[[]int](p, fmt.Sprintf(
		`(r => [r.left, r.top, r.right, r.bottom].map(Math.round))(document.querySelector(%q).getBoundingClientRect())`, selector))
	picture, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.T, err)
	picture, err = shrink(picture, image.Rect(box[0], box[1], box[2], box[3]))
	require.NoError(p.T, err)
	return picture
}

// shrink cuts out a part of the picture, without the empty rows at its end, and encodes it
// with its 256 most frequent colors, which is about a third of the size. A page has few
// others.
func shrink(picture []byte, part image.Rectangle) ([]byte, error) {
	decoded, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		return nil, err
	}
	page := decoded.Bounds().Intersect(part)
	page.Max.Y = bottom(decoded, page)
	full := decoded.(interface {
		SubImage(r image.Rectangle) image.Image
	}).SubImage(page)
	count := map[color.RGBA]int{}
	eachPixel(full, func(_, _ int, c color.RGBA) { count[c]++ })
	frequent := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int { return count[b] - count[a] })
	var palette color.Palette
	for _, c := range frequent[:min(256, len(frequent))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c)) // at most 256 colors
	}
	small := image.NewPaletted(full.Bounds(), palette)
	eachPixel(full, func(x, y int, c color.RGBA) { small.SetColorIndex(x, y, index[c]) })
	var out bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small)
	return out.Bytes(), err
}

// bottom returns the lowest row of the page that has more than one color, with a margin.
func bottom(m image.Image, page image.Rectangle) int {
	for y := page.Max.Y - 1; y > page.Min.Y; y-- {
		for x := page.Min.X; x < page.Max.X; x++ {
			if m.At(x, y) != m.At(page.Min.X, y) {
				return min(y+16, page.Max.Y)
			}
		}
	}
	return page.Max.Y
}

func eachPixel(m image.Image, f func(x, y int, c color.RGBA)) {
	for y := m.Bounds().Min.Y; y < m.Bounds().Max.Y; y++ {
		for x := m.Bounds().Min.X; x < m.Bounds().Max.X; x++ {
			f(x, y, color.RGBAModel.Convert(m.At(x, y)).(color.RGBA))
		}
	}
}
